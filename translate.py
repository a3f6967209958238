"""Translate lines of text with the model in logdir: one line out for each line in, in order.

    python translate.py < in > out
    python translate.py --source in --output out

On a terminal it asks for a sentence at a time."""

import contextlib
import dataclasses
import itertools
import os
import queue
import sys
import threading
import time
from pathlib import Path

from hparams import InputError, Options, option, parse_flags, refuse_folder, run, whole_file


@dataclasses.dataclass(frozen=True)
class Task(Options):
    """What is translated, and what becomes of it."""

    source: str = option("-", "file to translate, a sentence a line; -: standard input")
    output: str = option("-", "file of the translations; -: standard output")
    nbest: int = option(
        1,
        "translations of each line, at most --beam; of several each is `line ||| text ||| score`,"
        " where the first line is 0",
        1,
        1001,
    )
    attention: str = option(
        "none",
        "picture, out.png say, of what the newest translation attends to; none: without",
    )
    replace_unknown: bool = option(
        False, "in place of <UNK> stands the source's word that the attention points to"
    )
    engine: str = option(
        "tensorflow",
        "what searches: this project, or CTranslate2, which is not for legacy",
        choices=("tensorflow", "ctranslate2"),
    )
    quantization: str = option(
        "float32", "CTranslate2's of the matrices", choices=("float32", "int8")
    )

    def __post_init__(self):
        super().__post_init__()
        if self.quantization != "float32" and self.engine != "ctranslate2":
            raise InputError(f"quantization {self.quantization} is for --engine ctranslate2 alone")
        if self.attention != "none" and not self.attention.endswith(".png"):
            raise InputError(f"attention {self.attention}: the picture is a PNG: end it on .png")
        for path in (self.output, self.attention):
            refuse_folder(path)


if __name__ == "__main__":
    flags = parse_flags(__doc__, Task)  # before TensorFlow is loaded

from tqdm import tqdm

import ctranslate
from attention import alignments, draw, ended, replace_unknown, save
from bleu import LITTLE_LEARNED_HINT, empty_note
from data_load import Ragged, encode_lines
from decoding import Translator, describe, load, share, translate_shared
from text import decode_lines, read_lines

AT_ONCE = 1000  # lines at most; of many, those of like lengths go together
MOMENT = 0.05  # seconds that the first of them waits for others
DRAWN = 100  # tokens across and down a picture of attention
SOURCE_HINT = "Check the path, which --source names"


def ask(title):
    """Yield what a person types, line by line."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  gives `input` the arrow keys
    print("A sentence a line; Ctrl-D ends.", file=sys.stderr)
    try:
        while True:
            if sys.stdout.isatty():
                line = input(f"{title}> ")
            else:  # `input` would write the prompt there
                print(f"{title}> ", end="", file=sys.stderr, flush=True)
                line = input()
            try:
                line.encode()
            except UnicodeEncodeError:
                print("This is not UTF-8, which the terminal is to send.", file=sys.stderr)
            else:
                yield line
    except EOFError:
        print(file=sys.stderr)  # or the shell's prompt would follow ours


def in_parts(lines):
    """Yield lists of lines: those that are there, and come within a moment of the first.

    An exception of `lines` is raised once the lines before it have been yielded.
    """
    waiting = queue.Queue(2 * AT_ONCE)

    def read():
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except Exception as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    end = ""
    while isinstance(end, str):
        part, until = [waiting.get()], time.monotonic() + MOMENT
        with contextlib.suppress(queue.Empty):
            while isinstance(part[-1], str) and len(part) < AT_ONCE:
                part.append(waiting.get(timeout=max(0.0, until - time.monotonic())))
        end = part[-1]
        if part := [line for line in part if isinstance(line, str)]:
            yield part
    if end is not None:
        raise end


def written(number, found, nbest):
    """The translations of a line as they are written, bytes."""
    if nbest == 1:
        return f"{found[0][0]}\n".encode()
    return "".join(f"{number} ||| {text} ||| {score:.4f}\n" for text, score in found).encode()


def count_lines(path):
    """How many lines a file has, roughly: its line feeds."""
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))


@contextlib.contextmanager
def open_output(path):
    """Standard output, or a file that replaces the one at `path` once it is whole; for bytes."""
    if path == "-":
        yield sys.stdout.buffer
    else:
        with whole_file(path) as file:
            yield file


def parts_of(source, title):
    """Yield the lines of a source in parts that are to be translated at once."""
    if source == "-" and sys.stdin.isatty():
        return ([line] for line in ask(title))
    if source == "-":
        # Not sys.stdin, which Python could not close at its end while the thread waits for it.
        return in_parts(decode_lines("standard input", open(0, "rb", closefd=False)))
    return in_parts(read_lines(source, SOURCE_HINT))


def draw_attention(translator, model, lines, path):
    """Draw how the last line with words is translated: they stand across, the translation down.

    Of a long one the beginning.
    """
    hp, (source, target) = translator.hp, translator.vocabs
    X, filled, _ = encode_lines(lines, source, hp)
    if not filled:
        return
    x = X[len(X) - 1]
    X = Ragged.of([x])
    ((pred, _), *_) = translator.search(X)[0]
    y = ended(pred, hp)
    (weights,) = alignments(model, hp, X, Ragged.of([y]))
    across, down = [*map(source.token, x[:DRAWN])], [*map(target.token, y[:DRAWN])]
    figure = draw(weights[None, :DRAWN, :DRAWN], across, down)
    with whole_file(path) as file:
        save(figure, file)
    print(f"{path}: attention of the last sentence", file=sys.stderr)


def finished(task, model, translator, lines):
    """The translations of lines, and what is asked for besides."""
    found = translator(lines)
    if task.attention != "none":
        draw_attention(translator, model, lines, task.attention)
    if task.replace_unknown:
        hp, vocabs = translator.hp, translator.vocabs
        rows = [row for row, best in enumerate(found) for _ in best]
        texts = [text for best in found for text, _ in best]
        texts = iter(replace_unknown(model, hp, vocabs, [lines[row] for row in rows], texts))
        found = [[(next(texts), score) for _, score in best] for best in found]
    return found


def translate_parts(translator, model, task, file):
    """Translate as the lines come; to a file, with a progress bar."""
    parts = parts_of(task.source, translator.hp.source_lang)
    total = count_lines(task.source) if os.path.isfile(task.source) else None
    numbers = itertools.count()
    shown = task.output == "-" and sys.stdout.isatty()  # the lines themselves are the progress
    best = []  # the newest translations, which tell whether the model has learned anything
    with tqdm(None, "translating", total, disable=total is None or shown, unit=" lines") as bar:
        for part in parts:
            for line, found in zip(part, finished(task, model, translator, part), strict=True):
                file.write(written(next(numbers), found, task.nbest))
                if line.strip():
                    best.append(found[0][0])
            del best[:-AT_ONCE]
            file.flush()
            bar.update(len(part))
    if note := empty_note(best):
        print(f"{note}. {LITTLE_LEARNED_HINT}", file=sys.stderr)


def translate_together(translator, task, paths):
    """Translate a file with other processes, each its share; the first one writes the output."""
    if "-" in (task.source, task.output):
        raise InputError("several processes share a file: give --source and --output")
    if task.replace_unknown or task.attention != "none":
        raise InputError("replace_unknown and attention are for one process: unset TF_CONFIG")

    how = [describe(translator.hp, paths), task.nbest, task.engine, task.quantization]

    def work(X):
        return translate_shared(translator.translate, X, Path(task.output), str(how), paths)

    found = translator(list(read_lines(task.source, SOURCE_HINT)), work)
    if found is not None:
        with whole_file(task.output) as file:
            file.writelines(written(i, best, task.nbest) for i, best in enumerate(found))


def make_translator(task, hp, model, vocabs):
    """The `Translator` that the flags ask for."""
    if task.engine == "tensorflow":
        return Translator(hp, model, vocabs, task.nbest)
    search = ctranslate.Search(hp, model, vocabs, task.nbest, task.quantization)
    return Translator(hp, model, vocabs, task.nbest, search)


def lines_are(count):
    """A count of lines and its verb."""
    return "1 line is" if count == 1 else f"{count} lines are"


def main(flags):
    """Translate what the flags name; `flags` as `parse_flags` returns them.

    Raises:
      InputError: there is no model, or the text cannot be read.
    """
    task, flags = Task.taken_from(flags)
    with contextlib.redirect_stdout(sys.stderr):  # what is said there is no translation
        paths, hp, model, vocabs = load(flags)
    if task.nbest > hp.beam:
        raise InputError(
            f"nbest is {task.nbest} and beam {hp.beam}: there are no more hypotheses than that:"
            f" say --beam {task.nbest} besides"
        )
    if task.replace_unknown and hp.tokens == "pieces":
        raise InputError("replace_unknown is for models of words: pieces spell what is unknown")
    translator = make_translator(task, hp, model, vocabs)
    if share()[1] > 1:
        translate_together(translator, task, paths)
    else:
        with open_output(task.output) as file:
            translate_parts(translator, model, task, file)
    if translator.cut:
        print(
            f"{lines_are(translator.cut)} longer than {hp.longest - 1} {hp.tokens}, which is all"
            " that is read: the beginning was translated",
            file=sys.stderr,
        )


if __name__ == "__main__":
    run(main, flags)
