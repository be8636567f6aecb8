"""An e-mail's way to the mail server: what it says, what the answers mean, and what cannot be smuggled in."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email import policy
from email.parser import BytesParser
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from messaging.errors import Deferred, Misconfigured, NotRetryable, Retryable
from messaging.settings import load
from services.notifications.channels import mail
from services.notifications.channels.mail import Mail, MailServer, compose
from services.notifications.settings import NotificationsSettings
from tests.fixtures.listening import listening
from tests.fixtures.smtp import Sink, mail_server
from tests.messaging.harness import until
from tests.notifications.orders import SECRET, order

FROM = "workbot@example.com"


@asynccontextmanager
async def mailing(port: int, **given: object) -> AsyncIterator[Mail]:
    server = {
        "host": "127.0.0.1",
        "port": port,
        "tls": "none",
        "user": None,
        "password": None,
        "sender": FROM,
        "timeout_seconds": 5.0,
        **given,
    }
    carrier = Mail(MailServer(**server), public_url="https://workbot.example", threads=2)  # type: ignore[arg-type]
    yield carrier
    await carrier.aclose()


async def test_an_e_mail_says_what_the_notification_says() -> None:
    sent = order("email", "ann@example.com", title="Größe geändert", body="Zeile eins\n.\nZeile drei")
    async with mail_server() as sink, mailing(sink.port) as carrier:
        await carrier.deliver(sent)
        await carrier.deliver(sent)
    first, again = sink.received
    assert (first.sender, first.receiver) == (FROM, "ann@example.com")
    assert first.message["Message-ID"] == again.message["Message-ID"] == f"<{sent.id}@example.com>"
    assert first.message["Subject"] == "Größe geändert"
    assert first.message["From"] == f"WorkBot <{FROM}>"
    assert first.message["Auto-Submitted"] == "auto-generated"
    text = first.message.get_content().replace("\r\n", "\n")
    assert "Zeile eins\n.\nZeile drei" in text
    assert "https://workbot.example/api/documents/d-1" in text


@pytest.mark.parametrize("smuggled", ["a\r\nBcc: eve@example.com", "a\nBcc: eve@example.com", "a\rBcc: eve"])
async def test_no_header_can_be_smuggled_in(smuggled: str) -> None:
    with pytest.raises(ValueError, match="Header values"):
        compose(order("email", "ann@example.com", title=smuggled), FROM, "https://x.example")
    made = compose(order("email", "ann@example.com", body=f"{smuggled}\n\n.\r\nMAIL FROM:<x>"), FROM, "https://x")
    parsed = BytesParser(policy=policy.default).parsebytes(made.as_bytes())
    assert parsed.keys() == made.keys()
    assert "Bcc" not in parsed


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({"RCPT": "550 no such user"}, NotRetryable),
        ({"RCPT": "450 try later"}, Retryable),
        ({"MAIL": "553 not from you"}, Deferred),
        ({"MAIL": "451 try later"}, Retryable),
        ({"DATA": "554 no"}, NotRetryable),
        ({"END": "552 too large"}, NotRetryable),
        ({"END": "452 no space"}, Retryable),
        ({"HELLO": "421 busy"}, Deferred),
        ({"HELLO": "554 go away"}, Deferred),
        ({"RCPT": "DROP"}, Deferred),
        ({"EHLO": "DROP"}, Deferred),
    ],
)
async def test_what_the_answers_mean(answers: dict[str, str], kind: type[Exception]) -> None:
    async with mail_server(answers) as sink, mailing(sink.port) as carrier:
        with pytest.raises(kind) as failed:
            await carrier.deliver(order("email", "ann@example.com"))
    assert type(failed.value) is kind


async def test_a_farewell_that_fails_changes_nothing() -> None:
    async with mail_server({"QUIT": "DROP"}) as sink, mailing(sink.port) as carrier:
        await carrier.deliver(order("email", "ann@example.com"))
    assert len(sink.received) == 1


async def test_no_mail_server_is_no_reason_to_hold_others(unused_tcp_port: int) -> None:
    """Deferred is the one error that makes only its own job wait, and says for how long."""
    async with mailing(unused_tcp_port) as carrier:
        with pytest.raises(Deferred) as failed:
            await carrier.deliver(order("email", "ann@example.com"))
    assert failed.value.retry_after == mail.AWAY_SECONDS


async def test_a_mail_server_that_dawdles_is_hung_up_on() -> None:
    """It says something all the time, so no single wait is too long, but its greeting never ends."""

    async def dawdle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"220-wait\r\n")
                await writer.drain()
                await asyncio.sleep(0.05)
        finally:
            ended.set()

    ended = asyncio.Event()
    async with listening(dawdle) as port, mailing(port, timeout_seconds=0.5) as carrier:
        with pytest.raises(Deferred, match="did not come to an end"):
            await asyncio.wait_for(carrier.deliver(order("email", "ann@example.com")), 30)
        await asyncio.wait_for(ended.wait(), 30)


async def test_a_mail_server_that_was_away_is_spared_and_then_tried_by_one(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deferred(carrier: Mail) -> None:
        with pytest.raises(Deferred):
            await carrier.deliver(order("email", "ann@example.com"))

    async with mailing(unused_tcp_port, timeout_seconds=0.5) as carrier:
        async with mail_server({"EHLO": "SILENCE"}, port=unused_tcp_port) as away:
            await deferred(carrier)
            for _ in range(20):
                await deferred(carrier)
            assert away.connections == 1
            monkeypatch.setattr(mail, "SPARE_SECONDS", 0.0)
            carrier._away_until = 0.0
            await asyncio.gather(*(deferred(carrier) for _ in range(20)))
            assert away.connections == 2
        async with mail_server(port=unused_tcp_port) as sink:
            for _ in range(3):
                await carrier.deliver(order("email", "ann@example.com"))
    assert sink.connections == 3


@pytest.mark.parametrize("how", ["none", "starttls", "tls"])
async def test_a_stop_does_not_wait_for_a_mail_server(
    certificate: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has let us in and says nothing more: the process would have to wait for an hour."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setattr(mail, "STOP_SECONDS", 0.2)
    encrypted = None if how == "none" else tls(certificate)
    server = mail_server({"RCPT": "SILENCE"}, tls=encrypted, implicit=how == "tls")
    async with server as sink, mailing(sink.port, tls=how, timeout_seconds=3600.0) as carrier:
        sending = asyncio.create_task(carrier.deliver(order("email", "ann@example.com")))
        await until(lambda: sink.silent == 1)
        assert not sending.done()
        await asyncio.wait_for(carrier.aclose(), 30)
        with pytest.raises(Deferred):
            await asyncio.wait_for(sending, 30)


def test_no_secret_is_written_into_a_log() -> None:
    server = MailServer("m", 25, "none", "bot", "the password", FROM, 1.0)
    assert "the password" not in repr(server)
    assert SECRET not in repr(order("webhook", "https://example.com/"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its key and itself in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    file.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + made.public_bytes(Encoding.PEM)
    )
    return file


def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize("how", ["starttls", "tls"])
async def test_the_line_is_encrypted_before_the_password(
    certificate: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server = mail_server(tls=tls(certificate), implicit=how == "tls")
    async with server as sink, mailing(sink.port, tls=how, user="bot", password="right") as carrier:
        await carrier.deliver(order("email", "ann@example.com"))
    (received,) = sink.received
    assert received.encrypted
    assert received.user == "bot"


async def test_who_cannot_be_trusted_gets_nothing(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate nobody vouches for; a server without STARTTLS; a password that is wrong."""

    async def refused(sink: Sink, **given: object) -> str:
        async with mailing(sink.port, **given) as carrier:
            with pytest.raises(Deferred) as failed:
                await carrier.deliver(order("email", "ann@example.com"))
        assert sink.received == []
        return str(failed.value)

    async with mail_server(tls=tls(certificate)) as sink:
        assert "CERTIFICATE_VERIFY_FAILED" in await refused(sink, tls="starttls", user="bot", password="right")
    async with mail_server() as sink:
        assert "STARTTLS" in await refused(sink, tls="starttls")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with mail_server(tls=tls(certificate)) as sink:
        assert "535" in await refused(sink, tls="starttls", user="bot", password="wrong")


@pytest.mark.parametrize(
    "given",
    [
        {"SMTP_HOST": "mail.example"},
        {"SMTP_HOST": "mail.example", "SMTP_FROM": "nobody"},
        {"SMTP_HOST": "mail.example", "SMTP_FROM": "a@b.example\nBcc: c"},
        {"SMTP_HOST": "m", "SMTP_FROM": FROM, "SMTP_USER": "bot"},
        {"SMTP_HOST": "m", "SMTP_FROM": FROM, "SMTP_USER": "bot", "SMTP_PASSWORD_FILE": "/x", "SMTP_TLS": "none"},
    ],
)
def test_half_a_mail_server_is_refused_at_start(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DATABASE_URL": "unused", **given}.items():
        monkeypatch.setenv(f"WORKBOT_{name}", value)
    with pytest.raises(Misconfigured, match=r"(?i)smtp"):
        load(NotificationsSettings)
