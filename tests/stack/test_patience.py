"""How long a child may stay silent."""

from stack import patience


def silence(*answers: tuple[float, bool]) -> float | None:
    since = None
    for asked, answered in answers:
        since = patience.silent_since(since, asked, answered)
    return since


def test_silence_begins_with_the_first_question_that_was_not_answered() -> None:
    assert silence((10, True), (20, False), (25, False)) == 20


def test_one_answer_ends_it() -> None:
    assert silence((10, False), (39, True)) is None
    assert silence((10, False), (39, True), (41, False)) == 41


def test_patience_is_out_only_once_the_whole_of_it_has_passed() -> None:
    assert not patience.is_out(None, 1000.0, 30.0)
    assert not patience.is_out(100.0, 129.9, 30.0)
    assert patience.is_out(100.0, 130.0, 30.0)


def test_a_service_frozen_for_fifteen_seconds_is_left_alone_and_servers_are_waited_for_longer() -> None:
    assert not patience.is_out(0.0, 15.0, patience.SERVICE_SECONDS)
    assert patience.INFRA_SECONDS > patience.SERVICE_SECONDS
