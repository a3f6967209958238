"""Lines that come one by one: from a terminal, or in batches from a pipe or a file."""

import contextlib
import queue
import sys
import threading
import time

BATCH_WAIT_SECONDS = 0.05  # the first line of a batch waits so long for others


def is_utf8(text) -> bool:
    """Whether text can be UTF-8: Python reads other bytes of a terminal as halves of surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def prompt_lines(prompt):
    """Yield the lines that the user types, without those that are not UTF-8."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives `input` the arrow keys
    print("Type one sentence per line. Ctrl-D ends the program.", file=sys.stderr)
    try:
        while True:
            if sys.stdout.isatty():
                line = input(f"{prompt}> ")
            else:  # `input` would write the prompt to standard output
                print(f"{prompt}> ", end="", file=sys.stderr, flush=True)
                line = input()
            if is_utf8(line):
                yield line
            else:
                print("The line is not UTF-8. Set the terminal to UTF-8.", file=sys.stderr)
    except EOFError:
        print(file=sys.stderr)  # or the prompt of the shell would follow ours


END = object()  # follows the last line


def batch_as_available(lines, max_lines):
    """Yield lists of lines: the next line, and those that follow within BATCH_WAIT_SECONDS.

    A line that comes alone is thus translated at once, and many lines are translated together, at
    most `max_lines`. An exception of `lines` is raised after the lines before it were yielded.
    """
    items = queue.Queue(2 * max_lines)

    def read():
        try:
            for line in lines:
                items.put(line)
            items.put(END)
        except Exception as error:
            items.put(error)

    def ends(item):
        return item is END or isinstance(item, Exception)

    threading.Thread(target=read, daemon=True).start()
    while True:
        batch, deadline = [items.get()], time.monotonic() + BATCH_WAIT_SECONDS
        with contextlib.suppress(queue.Empty):
            while len(batch) < max_lines and not ends(batch[-1]):
                batch.append(items.get(timeout=max(0.0, deadline - time.monotonic())))
        last = batch.pop() if ends(batch[-1]) else None
        if batch:
            yield batch
        if last is END:
            return
        if last:
            raise last
