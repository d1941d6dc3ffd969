"""What the host does in a call, counted: no time is."""

import sys


def entered(call):
    """Names of the functions of Python that a call enters."""
    names = []
    sys.setprofile(lambda frame, event, _: event == "call" and names.append(frame.f_code.co_name))
    try:
        call()
    finally:
        sys.setprofile(None)
    return names
