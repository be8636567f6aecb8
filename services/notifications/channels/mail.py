"""Deliveries as e-mails, over the mail server that the settings name.

The library blocks, so each e-mail is sent on a thread of a pool. One that was cut off by the end of our process may
have gone out: the Message-ID is made of the delivery's id, so that a repeat can be told.
"""

import asyncio
import contextlib
import smtplib
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Literal

from messaging.errors import Deferred, NotRetryable, Retryable
from services.notifications.records import Order

AWAY_SECONDS = 60.0
"""How long an e-mail waits when the mail server is away: it is everybody's, but webhooks must not wait for it."""


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where e-mails are handed in, and as whom."""

    host: str
    port: int
    tls: Literal["none", "starttls", "tls"]
    user: str | None
    password: str | None
    sender: str
    timeout_seconds: float


class Mail:
    """Sends e-mails, up to `threads` at once."""

    def __init__(self, server: MailServer, *, public_url: str, threads: int) -> None:
        self._server = server
        self._public_url = public_url
        self._threads = ThreadPoolExecutor(threads, "mail")
        self._tls = ssl.create_default_context()

    async def deliver(self, order: Order) -> None:
        """Hand it to the mail server. Delivered is what that has taken.

        Raises NotRetryable when it refuses receiver, sender or e-mail for good, Retryable when it does for now,
        Deferred when it cannot be reached or does not let us in.
        """
        message = compose(order, self._server.sender, self._public_url)
        await asyncio.get_running_loop().run_in_executor(self._threads, self._send, message, order.address)

    async def aclose(self) -> None:
        """Wait for what is being sent."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def _send(self, message: EmailMessage, receiver: str) -> None:
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
        except (smtplib.SMTPSenderRefused, smtplib.SMTPDataError) as error:
            raise _refusal(error.smtp_code, error.smtp_error) from None
        except OSError as error:  # all other errors of the library are among these
            raise Deferred(f"The mail server cannot be used: {_reason(error)}", AWAY_SECONDS) from error

    def _connected(self) -> smtplib.SMTP:
        server = self._server
        if server.tls == "tls":
            client: smtplib.SMTP = smtplib.SMTP_SSL(
                server.host, server.port, timeout=server.timeout_seconds, context=self._tls
            )
        else:
            client = smtplib.SMTP(server.host, server.port, timeout=server.timeout_seconds)
        try:
            if server.tls == "starttls":
                client.starttls(context=self._tls)
            if server.user is not None and server.password is not None:
                client.login(server.user, server.password)
        except BaseException:
            client.close()
            raise
        return client


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
