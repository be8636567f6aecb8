"""Which port each child gets."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.errors import Misconfigured
from stack import ports, state
from stack.embedded import Embedded
from stack.layout import Layout
from stack.progress import Lines
from stack.settings import StackSettings
from tests.fixtures.ports import free_ports

DEFAULTS = {"postgres": 15432, "kafka": 19092, "kafka-controller": 19093}


def choose(fixed: dict[str, int], remembered: dict[str, int], taken: set[int]) -> dict[str, int]:
    return ports.choose(fixed, remembered, lambda port: port not in taken, DEFAULTS)


def test_the_usual_ports_when_they_are_free() -> None:
    assert choose({}, {}, set()) == DEFAULTS


def test_a_port_that_had_to_move_stays_while_the_usual_one_is_taken_and_comes_back_when_it_is_free() -> None:
    assert choose({}, {"kafka": 29092}, {19092})["kafka"] == 29092
    assert choose({}, {"kafka": 29092}, {19092, 29092})["kafka"] == 19192
    assert choose({}, {"kafka": 29092}, set())["kafka"] == 19092


def test_a_port_that_a_person_fixed_once_is_kept() -> None:
    def again(taken: set[int]) -> int:
        return ports.choose({}, {"kafka": 29092}, lambda port: port not in taken, DEFAULTS, ["kafka"])["kafka"]

    assert again(set()) == 29092
    assert again({29092}) == 19092


def test_a_free_neighbour_when_the_usual_port_is_taken() -> None:
    assert choose({}, {}, {15432, 15532})["postgres"] == 15632


def test_a_fixed_port_wins_over_the_last_run() -> None:
    assert choose({"kafka": 9092}, {"kafka": 29092}, set())["kafka"] == 9092


def test_a_fixed_port_that_is_taken_is_an_error_that_names_it_and_its_setting() -> None:
    with pytest.raises(ports.PortTaken, match=r"Port 9092 for kafka-controller .*WORKBOT_PORT_KAFKA_CONTROLLER"):
        choose({"kafka-controller": 9092}, {}, {9092})


def test_a_port_fixed_twice_is_an_error() -> None:
    with pytest.raises(ports.PortTaken):
        choose({"kafka": 9092, "postgres": 9092}, {}, set())


def test_nobody_is_given_a_port_that_is_fixed_for_another() -> None:
    chosen = choose({"kafka-controller": 15432}, {"kafka": 15432}, set())
    assert chosen == {"postgres": 15532, "kafka": 19092, "kafka-controller": 15432}


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(Misconfigured, match="no port named zookeeper"):
        choose({"zookeeper": 2181}, {}, set())


@given(
    st.dictionaries(st.sampled_from(sorted(DEFAULTS)), st.sampled_from([15432, 19092, 19093, 20000])),
    st.sets(st.sampled_from([15432, 15532, 19092, 19093, 19192, 20000])),
)
def test_ports_are_free_and_never_given_twice(remembered: dict[str, int], taken: set[int]) -> None:
    chosen = choose({}, remembered, taken)
    assert chosen.keys() == DEFAULTS.keys()
    assert len(set(chosen.values())) == len(chosen)
    assert not taken & set(chosen.values())


def test_a_listener_takes_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_a_port_is_claimed_before_anyone_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    ours, theirs = ports.Claims(), ports.Claims()
    assert ours.take(port)
    assert not theirs.take(port)
    ours.release()
    assert theirs.take(port)
    theirs.release()


def test_a_stack_without_services_claims_none_of_their_ports(tmp_path: Path) -> None:
    wanted = free_ports()
    settings = StackSettings(data_dir=tmp_path / "stack")
    with socket.socket() as other:
        other.bind(("127.0.0.1", wanted["gateway-api"]))
        other.listen()
        with Embedded(settings, Lines(print), services=False, fixed_ports=wanted) as stack:
            assert stack.ports == {name: wanted[name] for name in ports.INFRASTRUCTURE}
            assert (stack.endpoints.gateway_api, stack.endpoints.documents_api) == ("", "")
            others = ports.Claims()
            assert others.take(wanted["documents-api"]), "another stack may have it"
            others.release()
        with pytest.raises(ports.PortTaken, match="gateway-api"):
            Embedded(settings, Lines(print), fixed_ports=wanted).__enter__()
        with pytest.raises(Misconfigured, match="no port named nonsense"):
            Embedded(settings, Lines(print), services=False, fixed_ports={"nonsense": 1}).__enter__()


def test_what_is_remembered_of_services_outlives_a_start_without_them(tmp_path: Path) -> None:
    settings = StackSettings(data_dir=tmp_path / "stack")
    wanted = free_ports()
    for services in (True, False):
        with Embedded(settings, Lines(print), services=services, fixed_ports=wanted):
            pass
    known = state.read(Layout(tmp_path / "stack").state)
    assert (known.ports, known.fixed) == (wanted, list(wanted))


def test_a_port_that_was_fixed_stays_and_one_that_had_to_move_comes_back(tmp_path: Path) -> None:
    settings = StackSettings(data_dir=tmp_path / "stack")
    fixed = free_ports()
    moved = fixed.pop("kafka")
    with Embedded(settings, Lines(print), services=False, fixed_ports=fixed) as stack:
        usual = stack.ports["kafka"]
    known = state.read(Layout(tmp_path / "stack").state)
    state.write(Layout(tmp_path / "stack").state, replace(known, ports={**known.ports, "kafka": moved}))
    # Another stack of this machine may hold the default port, by its claim alone.
    claims = ports.Claims()
    free = claims.take(ports.DEFAULTS["kafka"])
    claims.release()
    with Embedded(settings, Lines(print), services=False) as stack:
        assert stack.ports["postgres"] == fixed["postgres"]
        assert stack.ports["kafka"] in ((ports.DEFAULTS["kafka"],) if free else (usual, moved))
