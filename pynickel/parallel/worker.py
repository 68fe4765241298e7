"""What runs in a child: tie its life to the parent's, take one piece of work, run it, say how it went."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ctypes
import faulthandler
import io
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from types import FrameType, TracebackType
from typing import NoReturn

from pynickel.parallel import channel as kinds
from pynickel.parallel import deadline, serial, tree
from pynickel.parallel.channel import Channel
from pynickel.parallel.parent import Parent

_PR_SET_PDEATHSIG = 1
_PF_EXITING = 4  # in the flags of /proc/<pid>/stat
_PATIENCE = 2.0  # seconds from the parent's end to ours, if nothing else stops the work
_CAUSE = 50  # looks, 10 ms apart, that an error has to come out of the work before we end it: the parent may end us because of it
_LOOK_UP = 1000  # milliseconds between two looks whether the parent lives, should the connection not tell


class Terminated(SystemExit):
    """SIGTERM: leave in order, so that `finally` and atexit get their turn."""


def start(descriptor: int, parent_pid: int, last_words: int) -> NoReturn:
    """Be the child at the other end of this descriptor; last_words is the parent's own stderr, or -1."""
    for ours in (descriptor, last_words):
        if ours >= 0:
            os.set_inheritable(ours, False)
    main(Parent(Channel(socket.socket(fileno=descriptor)), parent_pid), parent_pid, last_words)


def main(parent: Parent, starter: int, last_words: int) -> NoReturn:
    """Be a child of this parent; `starter` is the process whose end is ours, too: the parent, or its stand-in on this machine."""
    _die_with(starter)
    signal.signal(signal.SIGTERM, _terminate)
    _end_quietly()
    # Ctrl-C is for the parent to answer. It was blocked since before this process began, so none can have come through.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    _set_up_output()
    watcher = Watcher(parent, starter, last_words)
    watcher.start()
    status = _work(parent)
    watcher.leaving = True
    sys.exit(status)


def _set_up_output() -> None:
    """Whole lines on stdout, whatever it is; the Python stack on stderr when C code crashes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    faulthandler.enable(file=2, all_threads=False)


def _die_with(parent_pid: int) -> None:
    """Have the kernel end this process a second after the parent's thread that started it ends, which is when the parent does.

    The kernel sends SIGHUP (number 1) then, and its handler is C's own alarm(seconds): SIGALRM ends us after that second, in which we
    say that the parent is gone, even if none of our threads can run any Python. A parent that ended before the call has left us another.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGHUP, ctypes.cast(libc.alarm, ctypes.c_void_p))
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def _is_ending(parent_pid: int) -> bool:
    """Whether the parent is gone or on its way: it closes its connections before it has left us."""
    if os.getppid() != parent_pid:
        return True
    try:
        with open(f"/proc/{parent_pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return True
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + number)


def _end_quietly() -> None:
    """SIGTERM that comes while the interpreter ends has it go on with that; it is no error for stderr."""
    shown = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not Terminated:
            shown(unraisable)

    sys.unraisablehook = hook


def _work(parent: Parent) -> int | str | None:
    """Run the one piece of work and return what sys.exit shall be given."""
    try:
        _begin(parent)
        serial.run_work(parent.work())
        tree.close(tree.GRACE)
    except Terminated:
        raise
    except SystemExit as leaving:
        if leaving.code:
            return leaving.code
    except BaseException as error:
        _tell_failure(parent, error)
        return 1
    _tell(parent, kinds.DONE)
    return 0


def _begin(parent: Parent) -> None:
    setup = parent.setup()
    parent.id = setup.parent_id
    deadline.default_timeout = setup.timeout
    tree.become_child(parent, setup.id, setup.args)
    parent.tell(kinds.READY)


def _tell(parent: Parent, kind: int, *parts: bytes) -> bool:
    try:
        parent.tell(kind, *parts)
    except (OSError, RuntimeError):
        return False  # the parent is gone, or wants no more of us: it is told nothing
    return True


def _tell_failure(parent: Parent, error: BaseException) -> None:
    """The parent shows the traceback, once; only when it cannot be reached does this process."""
    text = "".join(traceback.format_exception(type(error), error, _without_ours(error.__traceback__)))
    line = traceback.format_exception_only(type(error), error)[-1].strip()
    told = json.dumps({"error": line, "traceback": text, "follows": isinstance(error, ConnectionError)})
    if not _tell(parent, kinds.FAILED, told.encode()):
        sys.stderr.write(text)


def _without_ours(stack: TracebackType | None) -> TracebackType | None:
    """Leave out what lies above the work; it says nothing about what went wrong in it."""
    first = stack
    while first is not None and first.tb_frame.f_globals.get("__package__") == __package__:
        first = first.tb_next
    return first or stack


def _has_error(thread: int | None) -> bool:
    """Whether an exception is on its way through that thread, or being handled there."""
    found: object = sys._current_exceptions().get(thread or 0)
    return found not in (None, (None, None, None))  # a triple before Python 3.12


class Watcher(threading.Thread):
    """Reads what the parent sends, and ends this process when the parent closes the connection or dies."""

    def __init__(self, parent: Parent, starter: int, last_words: int) -> None:
        super().__init__(name="pynickel.parallel watcher", daemon=True)
        self.parent = parent
        self.starter = starter
        self.last_words = last_words
        self.leaving = False  # the work is over: the process ends by itself

    def run(self) -> None:
        """Read until the end."""
        poll = select.poll()
        poll.register(self.parent.channel, select.POLLIN)
        try:
            while os.getppid() == self.starter:
                if poll.poll(_LOOK_UP):
                    for message in self.parent.channel.arrived():
                        self.parent._take(message)
        except EOFError:
            pass
        self._leave()

    def _leave(self) -> None:
        self.parent.left()
        if not self.leaving and self.last_words >= 0 and _is_ending(self.parent.pid):
            self._tell_end()
        else:
            self._let_fail()
        if not self.leaving:
            main = threading.main_thread().ident
            if main is not None:
                signal.pthread_kill(main, signal.SIGTERM)
        time.sleep(_PATIENCE)
        os.kill(os.getpid(), signal.SIGKILL)

    def _let_fail(self) -> None:
        """Wait while the work has an error in hand. Its communicator's end is told to the peers before the error to the parent, which
        may be one of them and end for that reason: SIGTERM would then put itself in the place of the error that explains it all.

        Looks are counted, not time: while this process stands still the work cannot go on either."""
        for _ in range(_CAUSE):
            if self.leaving or not _has_error(threading.main_thread().ident):
                return
            time.sleep(0.01)

    def _tell_end(self) -> None:
        """The parent has not closed the connection, it is gone: say so where it would have said it."""
        line = f"pynickel.parallel: child {tree.here.id} (pid {os.getpid()}) ends because its parent (pid {self.parent.pid}) has ended\n"
        try:
            os.write(self.last_words, line.encode())
        except OSError:
            return  # nobody reads it any more
