from pathlib import Path

import pytest

from messaging.errors import Misconfigured
from messaging.policy import Backoff, Policy
from schemas import topics

GOOD = """
services = ["shop", "mail"]

[topics."orders.jobs"]
purpose = "One job per order placed."
key = "tenant:sender"
partitions = 3
retention = "until done"
producers = ["shop"]
events = ["order.placed"]

[topics."orders.jobs".consumers.packer]
service = "shop"
policy = { per_key = 2, total = 8, lend = true }
backoff = { attempts = 4, base = 1, cap = 60.0 }

[topics."orders.events"]
purpose = "What happened to each order."
key = "tenant:sender"
partitions = 5
retention = "36 hours"
producers = ["shop"]
events = ["order.packed", "order.sent"]

[topics."orders.events".consumers.letters]
service = "mail"
policy = { ordered = true }
backoff = { attempts = 3 }

[topics."orders.events".consumers.counts]
service = "mail"
policy = { ordered = true }
backoff = { attempts = 3 }
"""


def load(tmp_path: Path, text: str = GOOD) -> topics.Topics:
    file = tmp_path / "topics.toml"
    file.write_text(text, "utf-8")
    return topics.load(file)


def test_each_consumer_brings_a_retry_and_a_dead_letter_topic(tmp_path: Path) -> None:
    specs = {spec.name: spec for spec in load(tmp_path).specs()}
    assert list(specs) == [
        "orders.jobs",
        "orders.jobs.packer.retry",
        "orders.jobs.packer.dlq",
        "orders.events",
        "orders.events.letters.retry",
        "orders.events.letters.dlq",
        "orders.events.counts.retry",
        "orders.events.counts.dlq",
    ]
    assert {name: spec.partitions for name, spec in specs.items() if name.startswith("orders.jobs")} == dict.fromkeys(
        ["orders.jobs", "orders.jobs.packer.retry", "orders.jobs.packer.dlq"], 3
    )
    assert {spec.partitions for name, spec in specs.items() if name.startswith("orders.events")} == {5}


def test_dead_letters_and_retries_have_room_for_our_headers(tmp_path: Path) -> None:
    configs = {spec.name: spec.config for spec in load(tmp_path).specs()}
    source = int(configs["orders.events"]["max.message.bytes"])
    for steps, follower in enumerate(("orders.events.letters.retry", "orders.events.letters.dlq"), 1):
        assert int(configs[follower]["max.message.bytes"]) == source + steps * 64 * 1024


def test_what_is_done_once_stays_until_it_is_and_everything_else_goes_by_the_clock(tmp_path: Path) -> None:
    """Jobs and their retries are deleted as they are done; a letter is in the gateway's table long before it goes."""
    specs = load(tmp_path).specs()
    days = {spec.name: int(spec.config["retention.ms"]) / 86_400_000 for spec in specs}
    assert {name: kept for name, kept in days.items() if kept > 0} == {
        "orders.jobs.packer.dlq": 90,
        "orders.events": 1.5,
        "orders.events.letters.retry": 10,
        "orders.events.letters.dlq": 90,
        "orders.events.counts.retry": 10,
        "orders.events.counts.dlq": 90,
    }
    for spec in specs:
        assert spec.config["retention.bytes"] == "-1"
        # Kafka deletes whole segments, so a record stays by one of them longer than asked for.
        retention = int(spec.config["retention.ms"])
        assert spec.config.get("segment.ms") == (str(retention // 7) if retention > 0 else None)


def test_a_subscription_holds_what_the_file_promises(tmp_path: Path) -> None:
    subscription = load(tmp_path).subscription("orders.jobs", "packer")
    assert subscription.group == "orders.jobs.packer"
    assert subscription.retry_topic == "orders.jobs.packer.retry"
    assert subscription.dead_letter_topic == "orders.jobs.packer.dlq"
    assert subscription.policy == Policy(per_key=2, total=8, lend=True)
    assert subscription.backoff == Backoff(attempts=4, base=1.0, cap=60.0)


def test_a_process_may_replace_policy_and_backoff(tmp_path: Path) -> None:
    subscription = load(tmp_path).subscription(
        "orders.jobs", "packer", policy=Policy(per_key=1, total=4), backoff=Backoff(attempts=2)
    )
    assert subscription.policy == Policy(per_key=1, total=4)
    assert subscription.backoff == Backoff(attempts=2)


def test_two_consumers_of_one_name_in_a_service_need_names_of_their_own(tmp_path: Path) -> None:
    """Their service has one ledger, and its process one set of metrics."""
    clash = GOOD.replace("consumers.packer]", "consumers.letters]").replace(
        'letters]\nservice = "shop"', 'letters]\nservice = "mail"'
    )
    with pytest.raises(Misconfigured, match=r"events\.consumers\.letters: mail has a consumer 'letters' already"):
        load(tmp_path, clash)
    loaded = load(tmp_path, clash.replace('service = "mail"', 'service = "mail"\nalias = "orders.jobs.letters"', 1))
    assert loaded.subscription("orders.jobs", "letters").name == "orders.jobs.letters"
    assert loaded.subscription("orders.jobs", "letters").group == "orders.jobs.letters"
    assert loaded.subscription("orders.events", "letters").name == "letters"


def test_an_alias_changes_no_topic_and_no_group(tmp_path: Path) -> None:
    plain = load(tmp_path).subscription("orders.jobs", "packer")
    named = load(tmp_path, GOOD.replace('service = "shop"', 'service = "shop"\nalias = "a.b"')).subscription(
        "orders.jobs", "packer"
    )
    assert (plain.name, named.name) == ("packer", "a.b")
    assert (named.group, named.retry_topic, named.dead_letter_topic) == (
        plain.group,
        plain.retry_topic,
        plain.dead_letter_topic,
    )


def test_dead_letter_topics_name_their_owner(tmp_path: Path) -> None:
    assert load(tmp_path).dead_letter_topics() == [
        topics.DeadLetterTopic("orders.jobs.packer.dlq", "orders.jobs", "packer", "shop"),
        topics.DeadLetterTopic("orders.events.letters.dlq", "orders.events", "letters", "mail"),
        topics.DeadLetterTopic("orders.events.counts.dlq", "orders.events", "counts", "mail"),
    ]


def test_only_a_topic_kept_until_done_says_so(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    assert [name for name in loaded if loaded[name].until_done] == ["orders.jobs"]


def test_unknown_names_are_named(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    with pytest.raises(Misconfigured, match=r"no topic 'orders\.job'"):
        loaded.subscription("orders.job", "packer")
    with pytest.raises(Misconfigured, match=r"no consumer 'picker' of orders\.jobs"):
        loaded.subscription("orders.jobs", "picker")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("partitions = 3", "", r"topics\.orders\.jobs\.partitions: Field required"),
        ("partitions = 3", "partitions = '3'", r"topics\.orders\.jobs\.partitions: Input should be a valid integer"),
        ("partitions = 3", "partitions = 0", r"topics\.orders\.jobs\.partitions: .*greater than or equal to 1"),
        ("partitions = 3", "partition = 3", r"topics\.orders\.jobs\.partition: Extra inputs are not permitted"),
        ("total = 8", "totals = 8", r"topics\.orders\.jobs\.consumers\.packer\.policy\.totals"),
        ("per_key = 2", "per_key = 9", r"consumers\.packer\.policy: .*per_key must be between 1 and total \(8\)"),
        ("lend = true", "lend = 1", r"consumers\.packer\.policy\.lend: Input should be a valid boolean"),
        ("attempts = 4", "attempts = 0", r"consumers\.packer\.backoff: .*need attempts >= 1"),
        ('"36 hours"', '"a while"', r"topics\.orders\.events\.retention: .*expected \"until done\" or a time"),
        ('"36 hours"', '"0 days"', r"topics\.orders\.events\.retention"),
        ('"36 hours"', '"until done"', r"orders\.events\.retention: .*needs exactly one consumer, not 2"),
        ('key = "tenant:sender"', 'key = "id"', r"topics\.orders\.jobs\.key: .*'tenant:sender'"),
        ('producers = ["shop"]', "producers = []", r"topics\.orders\.jobs\.producers"),
        ('producers = ["shop"]', 'producers = ["shp"]', r"orders\.jobs\.producers: 'shp' is not one of the services"),
        ('service = "mail"', 'service = "male"', r"consumers\.letters\.service: 'male' is not one of the services"),
        (
            '["order.placed"]',
            '["order.sent"]',
            r"orders\.events\.events: 'order\.sent' already travels on orders\.jobs",
        ),
        ('["order.placed"]', '["Order Placed"]', r"topics\.orders\.jobs\.events"),
        ('"orders.jobs"', '"orders.dlq"', r"orders\.dlq: names ending in \.retry or \.dlq"),
        ('"orders.jobs"', '"orders_jobs"', r"topics\.orders_jobs"),
        ("partitions = 3", "partitions = = 3", r"topics\.toml is not TOML"),
    ],
)
def test_a_wrong_file_names_the_field(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    with pytest.raises(Misconfigured, match=complaint):
        load(tmp_path, GOOD.replace(old, new))


def test_our_own_list_holds_the_reading_jobs() -> None:
    ours = topics.load()
    reader = ours.subscription("documents.jobs", "reader")
    assert reader.policy == Policy(per_key=2, total=10, lend=True)
    assert reader.backoff == Backoff(attempts=4, base=1.0, cap=60.0)
    assert ours["documents.jobs"].until_done
    assert not ours["documents.events"].until_done


SHARED = (
    GOOD.replace("policy = { ordered = true }", 'group = "tables"\npolicy = { ordered = true }', 1)
    + """
[tables.tables]
service = "mail"
names = ["sums", "means"]
partitions = 5
"""
)


def test_a_table_brings_its_changelog(tmp_path: Path) -> None:
    specs = {spec.name: spec for spec in load(tmp_path, SHARED).specs()}
    assert list(specs)[-2:] == ["tables-sums-changelog", "tables-means-changelog"]
    for name in list(specs)[-2:]:
        assert (specs[name].partitions, specs[name].config["cleanup.policy"]) == (5, "compact")
        assert specs[name].config["max.compaction.lag.ms"] == str(7 * 86_400_000)
        assert "retention.ms" not in specs[name].config


def test_a_shared_group_is_one_for_all_its_topics(tmp_path: Path) -> None:
    loaded = load(tmp_path, SHARED)
    assert loaded.subscription("orders.events", "letters").group == "tables"
    assert [sub.consumer for sub in loaded.subscriptions_of("tables")] == ["letters"]
    assert [(sub.topic, sub.group) for sub in topics.load().subscriptions_of("analytics")] == [
        ("documents.events", "analytics"),
        ("requests.events", "analytics"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('service = "mail"\nnames', 'service = "male"\nnames', r"tables\.tables\.service: 'male' is not one of"),
        ("[tables.tables]", "[tables.chairs]", r"tables\.chairs: no consumer has this group"),
        ('"means"]\npartitions = 5', '"means"]\npartitions = 4', r"tables\.tables\.partitions: orders\.events has 5"),
        ('["sums", "means"]', "[]", r"tables\.tables\.names"),
        ('group = "tables"', 'group = "the tables"', r"consumers\.letters\.group"),
    ],
)
def test_wrong_tables_name_the_field(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in SHARED
    with pytest.raises(Misconfigured, match=complaint):
        load(tmp_path, SHARED.replace(old, new))
