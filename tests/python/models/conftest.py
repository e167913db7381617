"""What tests of models share."""

import octofold
import pytest


@pytest.fixture
def log():
    messages = []
    octofold.set_log_handler(lambda level, message: messages.append(message))
    yield messages
    octofold.set_log_handler(None)
