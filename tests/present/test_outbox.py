"""What is sent to a notebook: one thread sends it, and what cannot be sent is counted and named."""

import threading
import warnings

from sonde import SondeWarning
from sonde.notebook.widget import Outbox


def test_messages_that_cannot_be_sent_are_counted_and_the_first_is_named():
    sent, done = [], threading.Event()

    def deliver(message, _body):
        if message["n"] in {1, 2}:
            raise ConnectionError("the socket is closed")
        sent.append(message["n"])
        if message["n"] == 3:
            done.set()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        outbox = Outbox(deliver)
        for n in range(4):
            outbox.put({"n": n}, None)
        assert done.wait(30)
        outbox.close()
    assert sent == [0, 3]
    assert outbox.undelivered == 2
    told = [str(one.message) for one in said if one.category is SondeWarning]
    assert len(told) == 1
    assert "ConnectionError: the socket is closed" in told[0]
    assert "Run the cell again" in told[0]
