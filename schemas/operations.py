"""Pure: who sends and who receives what, for the published contract. It follows from topics.toml."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from messaging.policy import Subscription
from schemas.topics import Topics

POSTMASTER = "gateway"
"""The service that copies everybody's dead letters, and sends back."""

BINDING = "0.5.0"
"""The version of the Kafka bindings."""

Part = dict[str, Any]


def operations(listed: Topics, read: Mapping[str, list[str]], written: Mapping[str, list[str]]) -> Part:
    """Each operation by its name. `read`, `written`: by topic, the messages that readers meet, that are written."""
    found: Part = {}
    for name in listed:
        for service in listed[name].producers:
            found[f"{service}.sends.{name}"] = _operation("send", service, name, written[name], "Through its outbox.")
        for consumer, owner in listed[name].consumers.items():
            found |= _of_consumer(listed.subscription(name, consumer), owner.service, read[name])
    return found


def ref(*path: str) -> Part:
    """A reference within the document."""
    return {"$ref": "#/" + "/".join(path)}


def const(value: str) -> Part:
    """A schema for one text."""
    return {"type": "string", "const": value}


def _of_consumer(sub: Subscription, service: str, messages: list[str]) -> Part:
    """What its service does, and what the gateway does with its dead letters."""
    retry, dead = sub.retry_topic, sub.dead_letter_topic
    promise = {
        "bindings": {"kafka": {"groupId": const(sub.group), "bindingVersion": BINDING}},
        "x-policy": asdict(sub.policy),
        "x-backoff": asdict(sub.backoff),
    }
    found = {
        f"{service}.receives.{place}.as.{sub.consumer}": _operation("receive", service, place, messages, what)
        | promise
        for place, what in ((sub.topic, _promise(sub)), (retry, "What it is to run again."))
    }
    sent = [(service, dead, "What it gave up."), (POSTMASTER, retry, "What staff send back.")]
    if not sub.policy.ordered:
        sent.append((service, retry, "What failed in a way that may pass."))
    for who, place, what in sent:
        found[f"{who}.sends.{place}"] = _operation("send", who, place, messages, what)
    what = "Into the list that staff see."
    found[f"{POSTMASTER}.receives.{dead}"] = _operation("receive", POSTMASTER, dead, messages, what)
    return found


def _operation(action: str, service: str, channel: str, messages: Iterable[str], description: str) -> Part:
    return {
        "action": action,
        "channel": ref("channels", channel),
        "description": description,
        "tags": [{"name": service}],
        "messages": [ref("channels", channel, "messages", message) for message in messages],
    }


def _promise(sub: Subscription) -> str:
    policy, backoff = sub.policy, sub.backoff
    sharing = "strictly in order per key" if policy.ordered else f"{policy.per_key} at once guaranteed to each sender"
    return (
        f"{policy.total} at once in all, {sharing}{', idle slots lent' if policy.lend else ''}. "
        f"{backoff.attempts} attempts, between them a random wait of up to {backoff.base:g} s, doubled each time, "
        f"at most {backoff.cap:g} s; then a dead letter. At least once: know what you did by ce_id."
    )
