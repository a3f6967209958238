"""Translate text, line by line, with the model in logdir.

    python translate.py in.txt > out.txt
    python translate.py --source in.txt --output out.txt

Each line of the input gives one line of the output, in the same order. A line may be a paragraph.
On a terminal each line is translated when it is typed."""

import contextlib
import dataclasses
import itertools
import os
import sys

from hparams import parse_reader_flags
from support.errors import InputError
from support.flags import NONE, Flags, flag
from support.parallel import one_thread_per_operation


@dataclasses.dataclass(frozen=True)
class TranslateFlags(Flags):
    """The flags of this script."""

    source: str = flag(
        "-",
        "file to translate, a sentence or a paragraph per line; -: standard input",
        path=True,
        positional=True,
    )
    output: str = flag("-", "file for the translations, written as they come; -: standard output")
    split: bool = flag(
        True,
        "split each line into sentences, and those of more than maxlen tokens into parts; not with"
        " nbest, prefix, score and alignments",
    )
    nbest: int = flag(
        1,
        "translations per line, at most --beam; if more than 1, each has a line `number |||"
        " translation ||| score` with the number of its source, counted from 0",
        1,
        1001,
    )
    attention: str = flag(NONE, "PNG file that shows the attention of the last translation")
    protect: bool = flag(
        True,
        "keep URLs, placeholders such as {name} and %s, tags, emoji, numbers, and characters that"
        " the vocabulary lacks; with subwords",
    )
    alignments: str = flag(
        NONE,
        "file for word alignments: 0-0 1-2 aligns word 0 of the source with word 0 of the"
        " translation, and word 1 with word 2",
    )
    score: str = flag(
        NONE,
        "file with a translation for each line of --source: write its log-probability and its"
        " perplexity",
        path=True,
    )
    prefix: str = flag(
        NONE, "file with the first words of each translation, which are then continued", path=True
    )

    def problems(self):
        if self.source != "-" and os.path.realpath(self.output) == os.path.realpath(self.source):
            yield "output would replace the source. Choose another"
        if self.source == "-" and {self.score, self.prefix} != {NONE}:
            yield "score and prefix need a file. Give --source"
        if self.attention != NONE and not self.attention.endswith(".png"):
            yield f"attention {self.attention}: choose a name that ends in .png"


if __name__ == "__main__":  # before TensorFlow is loaded
    given = parse_reader_flags(__doc__, TranslateFlags)
    # Scores are computed batch by batch, and from "-", sentences may come one by one.
    if given.get("source", "-") != "-" and "score" not in given:
        one_thread_per_operation()

from tqdm import tqdm

from support.cli import run_script
from support.files import atomic_open
from text.lines import blocks, decode_utf8, read_lines
from translation.attention_maps import draw_translation, word_alignments
from translation.inference import limit_note, load_model, start_quickly
from translation.paragraphs import Splitter, as_one_sentence
from translation.score import LineScore, Scorer
from translation.translator import Translator

MAX_BATCH_LINES = 1000  # lines that are translated together, sorted by length
MAX_READ_BYTES = 2**16  # from standard input at once

# Reading and writing lines ------------------------------------------


def read_available():
    """Yield lists of the lines that standard input has at the moment."""
    if sys.stdin.isatty():
        print("Type a text in one line. Ctrl-D ends the program.", file=sys.stderr)
    size = 0  # lines that have come together

    def read():
        nonlocal size
        rest = b""
        while chunk := os.read(0, MAX_READ_BYTES):  # waits only if there is nothing
            *lines, rest = (rest + chunk).split(b"\n")
            size = len(lines)
            yield from lines
        size = 1
        yield from [rest] if rest else []

    lines = decode_utf8("standard input", read())
    for line in lines:
        yield [line, *itertools.islice(lines, size - 1)]


def read_batches(source, other):
    """Return an iterator over lists of pairs; an error in the first one comes at once."""
    batches = read_pairs(source, other)
    return itertools.chain([*itertools.islice(batches, 1)], batches)


def read_pairs(source, other):
    """Yield lists of pairs: a line of the source, and of the other file, "" if it is NONE."""
    if source == "-":
        yield from ([(line, "") for line in lines] for lines in read_available())
        return
    lines, others = read_lines(source), itertools.repeat("")
    if other != NONE:
        lines, others = [*lines], [*read_lines(other)]
        if len(lines) != len(others):
            raise InputError(
                f"{other}: {len(others)} lines, but {source} has {len(lines)}. Make line n of one"
                " file belong to line n of the other"
            )
    yield from blocks(zip(lines, others, strict=False), MAX_BATCH_LINES)


@contextlib.contextmanager
def open_outputs(options, loaded):
    """Context manager: a function that writes texts, and the links of words."""
    no_bar = options.source == "-" or (options.output == "-" and sys.stdout.isatty())
    no_links, stdout = options.alignments == NONE, contextlib.nullcontext(sys.stdout.buffer)
    with (
        contextlib.nullcontext() if no_links else atomic_open(options.alignments) as aligned,
        stdout if options.output == "-" else atomic_open(options.output, in_place=True) as file,
        tqdm(disable=no_bar or None, unit=" lines") as bar,
    ):

        def write(texts, pairs):
            file.write("".join(texts).encode())
            file.flush()
            if aligned:
                links = word_alignments(loaded, pairs)
                aligned.write("".join(f"{line}\n" for line in links).encode())
            bar.update(len(texts))

        yield write


def format_translation(number, found, nbest) -> str:
    """Format a `TranslatedText`; `number` is that of its line, from 0."""
    if nbest == 1:
        return " ".join(found.text.splitlines()).strip() + "\n"  # U+2028 for example ends no line
    hypotheses = found.sentences[0].hypotheses
    return "".join(f"{number} ||| {own.text} ||| {own.score:.4f}\n" for own in hypotheses)


# Translating and scoring --------------------------------------------


def translate_lines(options, loaded):
    """Translate lines as they come, and print notes."""
    split = as_one_sentence
    if options.split and options.nbest == 1 and {options.prefix, options.alignments} == {NONE}:
        split = Splitter(loaded.hp.source_lang, loaded.vocabs[0], loaded.hp.maxlen)
    translator = Translator(loaded, options.nbest, split, options.protect)
    number = num_translated = at_limit = 0
    truncated, last = [], None  # the numbers of lines, counted from 1; the last translation
    batches = read_batches(options.source, options.prefix)  # before the output is opened
    with open_outputs(options, loaded) as write:
        for pairs in batches:
            found = translator(*zip(*pairs, strict=True))
            texts = [
                format_translation(i, own, options.nbest) for i, own in enumerate(found, number)
            ]
            sentences = [sentence for own in found for sentence in own.sentences]
            write(texts, [(own.ids, best.ids) for own in sentences for best in own.hypotheses])
            truncated += [i for i, own in enumerate(found, number + 1) if own.truncated]
            number += len(found)
            nonempty = [own for own in sentences if len(own.ids)]
            num_translated += len(nonempty)
            at_limit += sum(own.hypotheses[0].at_limit for own in nonempty)
            *_, last = last, *nonempty
    if truncated:
        print(
            f"{len(truncated)} of {number} lines were truncated to {translator.max_tokens - 1}"
            f" tokens (first: line {truncated[0]}). Write a sentence on each line",
            file=sys.stderr,
        )
    if note := limit_note(at_limit, num_translated, loaded.hp):
        print(note, file=sys.stderr)
    if options.attention != NONE and last:
        draw_translation(loaded, last, options.attention)


def score_lines(options, loaded):
    """Score the given translation of each line."""
    scorer, scores = Scorer(loaded), []
    batches = read_batches(options.source, options.score)
    with open_outputs(options, loaded) as write:
        for pairs in batches:
            found = scorer(*zip(*pairs, strict=True))
            texts = [f"{own.logp:.4f}\t{own.perplexity:.4f}\n" for own in found]
            write(texts, [(own.source_ids, own.target_ids) for own in found])
            scores += [(own.logp, own.num_tokens) for own in found]
    scored = [(logp, num_tokens) for logp, num_tokens in scores if num_tokens]
    logp, num_tokens = (sum(column) for column in zip((0, 0), *scored, strict=True))
    print(
        f"{len(scored)} of {len(scores)} lines, {num_tokens} {loaded.vocabs[1].token_name}:"
        f" log-probability {logp:.4f}, perplexity {LineScore(logp, num_tokens).perplexity:.4f}",
        file=sys.stderr,
    )


def main(given):
    """Translate the text that the flags name, or score given translations."""
    options = TranslateFlags.of(given)
    if options.source == "-":
        start_quickly()
    loaded = load_model(given)
    if options.nbest > loaded.hp.beam:
        raise InputError(
            f"nbest is {options.nbest}, but beam is {loaded.hp.beam}, and there is one translation"
            f" per hypothesis at most. Use --beam {options.nbest}"
        )
    if {options.attention, options.alignments} != {NONE} and not loaded.hp.has_attention:
        raise InputError("attention and alignments need a model with attention")
    (translate_lines if options.score == NONE else score_lines)(options, loaded)


if __name__ == "__main__":
    run_script(main, given)
