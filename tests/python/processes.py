"""Processes that are forked from one which has imported PyTorch and what is tested, and done nothing else.

To import PyTorch takes seconds each time.
"""

import contextlib
import io
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import traceback


def server():
    """The context of such processes. The first call starts the process that they come from."""
    found, before = multiprocessing.get_context("forkserver"), os.environ.get("PYTHONPATH")
    found.set_forkserver_preload(["test_uses"])
    # it does not get the path of this process by itself in every Python
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        os.environ.update({} if before is None else {"PYTHONPATH": before})
    return found


def executed(code, answer):
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, {"__name__": "__main__"})
    except BaseException:
        answer.send((None, traceback.format_exc()))
    else:
        answer.send((printed.getvalue(), None))


def output(code):
    """What a program prints in a process of its own."""
    here, there = (processes := server()).Pipe()
    process = processes.Process(target=executed, args=(code, there))
    process.start()
    there.close()
    try:
        printed, error = here.recv()
    finally:
        process.join()
    assert error is None, error
    return printed
