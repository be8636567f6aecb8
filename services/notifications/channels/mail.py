"""Deliveries as e-mails, over the mail server that the settings name.

The library blocks, so each e-mail is sent on a thread of a pool. One that was cut off, for taking too long or by the
end of our process, may have gone out: the Message-ID is made of the delivery's id, so that a repeat can be told.
"""

import asyncio
import contextlib
import smtplib
import socket
import ssl
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Literal

from messaging.errors import Deferred, NotRetryable, Retryable
from services.notifications.records import Order

AWAY_SECONDS = 60.0
"""How long an e-mail waits when the mail server is away: it is everybody's, but webhooks must not wait for it."""

SPARE_SECONDS = 10.0
"""How long nobody tries a mail server that was away."""

ANSWERS = 2
"""A whole e-mail may take as long as so many answers of the mail server."""

STOP_SECONDS = 3.0
"""How long what is being sent may take at the end of the process."""


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where e-mails are handed in, and as whom."""

    host: str
    port: int
    tls: Literal["none", "starttls", "tls"]
    user: str | None
    password: str | None = field(repr=False)
    sender: str
    timeout_seconds: float


class Mail:
    """Sends e-mails, up to `threads` at once.

    A mail server that was away is spared for a while, and then tried by one e-mail while the others still wait.
    """

    def __init__(self, server: MailServer, *, public_url: str, threads: int) -> None:
        self._server = server
        self._public_url = public_url
        self._seconds = ANSWERS * server.timeout_seconds
        self._threads = ThreadPoolExecutor(threads, "mail")
        self._tls = ssl.create_default_context()
        self._calls: dict[Future[None], _Call] = {}
        self._away: Deferred | None = None
        self._away_until = 0.0

    async def deliver(self, order: Order) -> None:
        """Hand it to the mail server. Delivered is what that has taken.

        Raises NotRetryable when it refuses receiver or e-mail for good, Retryable when it does for now, Deferred when
        it cannot be reached, does not let us in or takes nothing from our address, or does not come to an end.
        """
        message = compose(order, self._server.sender, self._public_url)
        if self._away is not None:
            if time.monotonic() < self._away_until:
                raise Deferred(str(self._away), AWAY_SECONDS)
            # This one tries it; the others wait for what comes of that.
            self._away_until = time.monotonic() + self._seconds
        try:
            await self._carry(message, order.address)
        except Deferred as error:
            self._away, self._away_until = error, time.monotonic() + SPARE_SECONDS
            raise
        except (NotRetryable, Retryable):
            self._away = None
            raise
        self._away = None

    async def aclose(self) -> None:
        """Wait a moment for what is being sent; then hang up."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(wait_for, list(self._calls), STOP_SECONDS)
        for call in list(self._calls.values()):
            call.hang_up()

    async def _carry(self, message: EmailMessage, receiver: str) -> None:
        call = _Call(self._server, self._tls)
        sending = self._threads.submit(call.send, message, receiver)
        self._calls[sending] = call
        sending.add_done_callback(self._calls.pop)
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.wrap_future(sending)
        except TimeoutError:
            # The thread comes back by itself.
            call.hang_up()
            problem = f"The mail server did not come to an end within {self._seconds:g} seconds."
            raise Deferred(problem, AWAY_SECONDS) from None


class _Call:
    """One connection to the mail server, which another thread may end at any time."""

    def __init__(self, server: MailServer, tls: ssl.SSLContext) -> None:
        self.client: smtplib.SMTP | None = None
        self._server = server
        self._tls = tls
        self._over = False

    def hang_up(self) -> None:
        """Whatever is waited for on this connection fails at once, and no e-mail is begun."""
        self._over = True
        line = None if self.client is None else self.client.sock
        if line is not None:
            with contextlib.suppress(OSError):  # it is closed already
                line.shutdown(socket.SHUT_RDWR)

    def send(self, message: EmailMessage, receiver: str) -> None:
        """Blocks. Raises as Mail.deliver does."""
        try:
            client = self._connected()
            try:
                client.send_message(message, self._server.sender, [receiver])
            finally:
                # The server has the e-mail, or has refused it; how the farewell goes changes neither.
                with contextlib.suppress(smtplib.SMTPException, OSError):
                    client.quit()
        except smtplib.SMTPRecipientsRefused as refused:
            raise _refusal(*refused.recipients[receiver]) from None
        except smtplib.SMTPDataError as error:
            raise _refusal(error.smtp_code, error.smtp_error) from None
        except smtplib.SMTPSenderRefused as error:
            refusal = _refusal(error.smtp_code, error.smtp_error)
            if isinstance(refusal, NotRetryable):
                # Of our own address, which is everybody's: no e-mail is at fault.
                raise Deferred(f"The mail server takes nothing from us: {refusal}", AWAY_SECONDS) from None
            raise refusal from None
        except OSError as error:  # all other errors of the library are among these
            raise Deferred(f"The mail server cannot be used: {_reason(error)}", AWAY_SECONDS) from error

    def _connected(self) -> smtplib.SMTP:
        server = self._server
        if server.tls == "tls":
            client: smtplib.SMTP = _EncryptedLine(self, server, self._tls)
        else:
            client = _Line(self, server)
        try:
            if server.tls == "starttls":
                client.starttls(context=self._tls)
            if server.user is not None and server.password is not None:
                client.login(server.user, server.password)
            self._check()
        except BaseException:
            client.close()
            raise
        return client

    def _check(self) -> None:
        if self._over:
            raise TimeoutError("it took too long to let us in")


class _Line(smtplib.SMTP):
    """Shows itself to its call before it connects, which it does when it is made."""

    def __init__(self, call: _Call, server: MailServer) -> None:
        call.client = self
        super().__init__(server.host, server.port, timeout=server.timeout_seconds)


class _EncryptedLine(smtplib.SMTP_SSL):
    """The same, encrypted from its start."""

    def __init__(self, call: _Call, server: MailServer, tls: ssl.SSLContext) -> None:
        call.client = self
        super().__init__(server.host, server.port, timeout=server.timeout_seconds, context=tls)


def compose(order: Order, sender: str, public_url: str) -> EmailMessage:
    """Pure: the e-mail. The library refuses a header with a line end, so nothing can be smuggled into one."""
    local, _, domain = sender.rpartition("@")
    message = EmailMessage()
    message["From"] = Address("WorkBot", local, domain)
    message["To"] = order.address
    message["Subject"] = order.title
    message["Date"] = format_datetime(order.created_at)
    message["Message-ID"] = f"<{order.id}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n\n".join(part for part in (order.title, order.body, public_url + order.href) if part))
    return message


def _refusal(code: int, text: bytes | str) -> NotRetryable | Retryable:
    detail = f"The mail server answered {code}: {_text(text)}"
    return NotRetryable(detail, "receiver_refused") if code >= 500 else Retryable(detail)


def _reason(error: OSError) -> str:
    if isinstance(error, smtplib.SMTPResponseException):
        return f"it answered {error.smtp_code}: {_text(error.smtp_error)}"
    return str(error) or type(error).__name__


def _text(said: bytes | str) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said
