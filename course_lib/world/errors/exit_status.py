"""The death of a rank's process, in words, with advice."""

import signal

_MACHINE = "the machine "

_UNKNOWN = 255  # `multiprocessing` reports it if its fork server, which knows the exit code, has died

_SIGNALS = {
    "SIGKILL": "its process was killed (SIGKILL)",
    "SIGSEGV": "its process touched memory that is not its own (SIGSEGV, a segmentation fault)",
    "SIGABRT": "its process gave up in native code (SIGABRT)",
}


def machine_lost(name: str, why: str) -> str:
    return f"{_MACHINE}{name!r} is lost, and every rank on it: {why}"


def how_it_died(exitcode: int) -> str:
    """Return an exit code in words: minus the number of a signal, or the argument of `os._exit`."""
    if exitcode == _UNKNOWN:
        return "its process left through os._exit(255), or the process that starts ranks was killed"
    if exitcode == 1:  # of Python, too, if the program took away what the course's own code needs
        return "its process left through os._exit(1), or by an exception outside the program, whose traceback is above"
    if exitcode >= 0:
        return f"its process left through os._exit({exitcode}), or as a different program that replaced it (os.execv)"
    name = signal.Signals(-exitcode).name
    return _SIGNALS.get(name, f"its process was ended by the signal {name}")


def after_death(how: str) -> str:
    """Return what to do next; `how` comes from the functions above."""
    if how.startswith(_MACHINE):
        return (
            "go on without that machine: a world of fewer ranks, from the last checkpoint. Or start an engine there "
            "again, and make the world anew."
        )
    return _ADVICE.get(how, _ELSE)


_ELSE = "look at what that rank did last; anything that it printed is above, and in the error's .output."
_ADVICE = {
    _SIGNALS["SIGKILL"]: (
        "if nobody killed it, the system probably did, because memory ran out (`dmesg` shows it): take a smaller model "
        "or batch, or fewer ranks."
    ),
    how_it_died(_UNKNOWN): "run the cell again, which starts new processes, unless a line of yours calls os._exit.",
    how_it_died(0): "use `return` to end a rank's work, on every rank at the same point.",
    _SIGNALS["SIGSEGV"]: "look at native code that this rank called: ctypes, an extension, a wrong index in a kernel.",
}
