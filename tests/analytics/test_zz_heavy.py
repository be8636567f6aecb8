import random, shutil, threading, time
from collections import Counter as Tally
from tests.analytics.conftest import *
from tests.analytics.conftest import place, home, start
from tests.analytics.test_crashes import load

def test_heavy(place, start, tmp_path):
    events = load(8000)
    wanted = Tally((e.sender, e.TYPE) for e in events)
    def feed():
        began = time.monotonic()
        for first in range(0, len(events), 90):
            place.send(events[first:first+90])
            time.sleep(max(0, began + (first+90)/900 - time.monotonic()))
    t = threading.Thread(target=feed, daemon=True); t.start()
    rng = random.Random(11)
    for kill in range(5):
        with start() as counter:
            time.sleep(rng.uniform(0.05, 2.0)); counter.kill()
        if kill % 3 == 2: shutil.rmtree(tmp_path/"tables")
    t.join()
    with start() as counter:
        until(lambda: counter.total() >= 8000, counter, 120)
        until(lambda: place.committed() == 8000, counter, 60)
        answer = counter.events().json(); repeats = counter.repeats()
        log = counter.log.read_text()
    found = {(e["sender"], n): c for e in answer["senders"] for n, c in e["types"].items()}
    assert found == dict(wanted)
    assert answer["reading"]["count"] == 2000
    print("EXACT", repeats, [f.read_text().count("JumpedOver") for f in sorted(tmp_path.glob("run-*/log"))], "moved", log.count("moved_back"))
