"""Translate text, line by line, with the model in logdir.

    python translate.py < in > out
    python translate.py --source in --output out

Each line of the input gives one line of the output, in the same order. On a terminal the
program asks for one sentence at a time. With --split, a line may be a paragraph."""

import contextlib
import dataclasses
import itertools
import sys

from hparams import READER_FLAGS, Hyperparams, check_saved_flags
from runtime.errors import InputError
from runtime.flags import NONE, Flags, flag, parse_flags
from runtime.parallel import one_thread_per_operation


@dataclasses.dataclass(frozen=True)
class TranslateFlags(Flags):
    """The flags of this script."""

    source: str = flag(
        "-",
        "file to translate, one sentence per line, or with --split one paragraph; -: standard"
        " input",
        path=True,
    )
    output: str = flag("-", "file to write the translations to; -: standard output")
    split: bool = flag(
        False,
        "split each line into sentences, and sentences of more than maxlen tokens into parts;"
        " a line of the output has all their translations",
    )
    nbest: int = flag(
        1,
        "translations per line, at most --beam; if more than 1, the output has a line `number |||"
        " translation ||| score` for each of them, with the numbers of the lines counted from 0",
        1,
        1001,
    )
    attention: str = flag(
        NONE, "PNG file, for example out.png, that shows the attention of the last translation"
    )
    protect: bool = flag(
        True,
        "keep URLs, e-mail addresses, placeholders such as {name} and %s, tags, emoji, numbers, and"
        " characters that the vocabulary lacks; with subwords",
    )
    alignments: str = flag(
        NONE,
        "file for the word alignment of each translation: 0-0 1-2 aligns word 0 of the source"
        " with word 0 of the translation, and word 1 with word 2",
    )
    score: str = flag(
        NONE,
        "file with a translation for each line of --source; the output has the log-probability"
        " and the perplexity of each, in place of translations",
        path=True,
    )
    prefix: str = flag(
        NONE,
        "file with the first words of the translation of each line of --source, which it then"
        " continues",
        path=True,
    )

    def __post_init__(self):
        super().__post_init__()
        reads_two = self.score != NONE or self.prefix != NONE
        for broken, problem in (
            (
                self.split and (reads_two or self.nbest > 1 or self.alignments != NONE),
                "split is for paragraphs; nbest, prefix, score and alignments are for sentences",
            ),
            (self.output == self.source != "-", "output would replace the source. Choose another"),
            (reads_two and self.source == "-", "score and prefix need a file. Give --source"),
            (
                self.attention != NONE and not self.attention.endswith(".png"),
                f"attention {self.attention}: choose a name that ends in .png",
            ),
        ):
            if broken:
                raise InputError(problem)


if __name__ == "__main__":  # before TensorFlow is loaded, which takes seconds
    own, names = TranslateFlags, READER_FLAGS
    given = parse_flags(__doc__, own, hparams=Hyperparams, names=names, check=check_saved_flags)
    # Scores are computed batch by batch, and from "-", sentences may come one by one.
    if given.get("source", "-") != "-" and "score" not in given:
        one_thread_per_operation()

import numpy as np
from tqdm import tqdm

from bleu import LITTLE_LEARNED_HINT, empty_note
from inference import SearchDecoder, limit_note, load_model, start_quickly
from monitor.attention_maps import align_translations, draw_translation, word_alignments
from paragraphs import Paragraph, Splitter
from protected import make_translator
from runtime.cli import run_script
from runtime.files import atomic_open, open_output
from runtime.lines import batch_as_available, prompt_lines
from score import LineScore, Scorer
from text import blocks, decode_utf8, read_lines

MAX_BATCH_LINES = 1000  # lines that are translated together, sorted by length

# Reading and writing lines -----------------------------------------------------


def is_dialog(source) -> bool:
    """Whether the sentences come from a terminal, where the user waits for each translation."""
    return source == "-" and sys.stdin.isatty()


def read_batches(source, prompt):
    """Return an iterator over the lines of a file or of standard input, in batches.

    Args:
      source: path, or "-" for standard input.
      prompt: text that asks for a sentence, if standard input is a terminal.
    """
    if is_dialog(source):
        return ([line] for line in prompt_lines(prompt))
    if source == "-":
        # Not sys.stdin: Python could not close it at exit while the thread waits for a line.
        lines = decode_utf8("standard input", open(0, "rb", closefd=False))
    else:
        lines = read_lines(source)
    return batch_as_available(lines, MAX_BATCH_LINES)


def format_line(number, paragraph, translations, nbest) -> bytes:
    """Format the translations of a line for the output.

    Args:
      number: of the line, counted from 0.
      paragraph, translations: its sentences, and the `Translation` of each.
      nbest: translations per line; with 1, the output is the text alone.
    """
    if nbest == 1:
        text = paragraph.join([own.text for own in translations])
        return " ".join(text.splitlines()).encode() + b"\n"  # U+2028 for example ends no line
    (translation,) = translations
    rows = (f"{number} ||| {own.text} ||| {own.score:.4f}\n" for own in translation.hypotheses)
    return "".join(rows).encode()


@contextlib.contextmanager
def open_outputs(options):
    """Context manager: the files of bytes for the output and the alignments; None for no file."""
    has_alignments = options.alignments != NONE
    with atomic_open(options.alignments) if has_alignments else contextlib.nullcontext() as aligned:
        with open_output(options.output) as file:
            yield file, aligned


# Scoring -----------------------------------------------------------------------


def score_file(options, loaded, lines, translations):
    """Score the translation of each line, and align them if the flags say so."""
    scorer, totals = Scorer(loaded), np.zeros(3)  # log-probability, tokens, lines with a score
    no_bar = options.output == "-" and sys.stdout.isatty()
    bar = tqdm(
        desc="scoring", total=len(lines), disable=no_bar, leave=False, delay=1, unit=" lines"
    )
    with open_outputs(options) as (file, aligned), bar:
        for pairs in blocks(zip(lines, translations, strict=True), MAX_BATCH_LINES):
            scores = scorer(*zip(*pairs, strict=True))
            for score in scores:
                file.write(f"{score.logp:.4f}\t{score.perplexity:.4f}\n".encode())
                if score.num_tokens:
                    totals += score.logp, score.num_tokens, 1
            if aligned:
                sides = [(score.source_ids, score.target_ids) for score in scores]
                write_lines(aligned, word_alignments(loaded, sides))
            bar.update(len(pairs))
    logp, num_tokens, num_scored = totals
    print(
        f"{num_scored:.0f} of {len(lines)} lines, {num_tokens:.0f} {loaded.vocabs[1].token_name}:"
        f" log-probability {logp:.4f}, perplexity {LineScore(logp, num_tokens).perplexity:.4f}",
        file=sys.stderr,
    )


def write_lines(file, lines):
    """Write lines of text to a file of bytes."""
    file.write("".join(f"{line}\n" for line in lines).encode())


# Translating -------------------------------------------------------------------


def translate_stream(options, translator, prefixes):
    """Translate lines as they come, and print notes on the translations.

    Args:
      options: TranslateFlags.
      translator: Translator.
      prefixes: the first words of each translation, list of str; None: none.

    Returns:
      The last `Translation` of a line that is not empty, if `--attention` is to draw it when the
      output is complete; else None.
    """
    loaded, dialog = translator.loaded, is_dialog(options.source)
    split = lambda line: Paragraph([line], ["", ""])  # noqa: E731
    if options.split:
        split = Splitter(loaded.hp.source_lang, loaded.vocabs[0], loaded.hp.maxlen)
    number = num_translated = at_limit = 0
    truncated = []  # the numbers of these lines, counted from 1
    recent = []  # translations that show whether the model has learned anything
    last = None
    no_bar = options.source == "-" or (options.output == "-" and sys.stdout.isatty())
    bar = tqdm(desc="translating", disable=no_bar, unit=" lines")
    with open_outputs(options) as (file, aligned), bar:
        for lines in read_batches(options.source, prompt=loaded.hp.source_lang):
            paragraphs = [*map(split, lines)]
            sentences = [sentence for paragraph in paragraphs for sentence in paragraph.inputs]
            begun = prefixes and prefixes[number : number + len(lines)]
            translations = translator(sentences, begun)
            rest = iter(translations)
            for paragraph in paragraphs:
                of_line = [*itertools.islice(rest, len(paragraph.sentences))]
                file.write(format_line(number, paragraph, of_line, options.nbest))
                number += 1
                if any(own.truncated for own in of_line):
                    truncated.append(number)
            file.flush()
            if aligned:
                write_lines(aligned, align_translations(loaded, translations))
            nonempty = [translation for translation in translations if len(translation.ids)]
            num_translated += len(nonempty)
            at_limit += sum(translation.hypotheses[0].at_limit for translation in nonempty)
            recent = [*recent, *(own.text for own in nonempty)][-MAX_BATCH_LINES:]
            if options.attention != NONE and nonempty:
                last = nonempty[-1]
                if dialog:  # after each sentence
                    draw_translation(loaded, last, options.attention)
            bar.update(len(lines))
    if note := empty_note(recent):
        print(f"{note}. {LITTLE_LEARNED_HINT}", file=sys.stderr)
    if truncated:
        hint = "" if options.split else ". With --split, all of a line is translated, part by part"
        print(
            f"{len(truncated)} of {number} lines were truncated to {translator.max_tokens - 1}"
            f" tokens (first: line {truncated[0]}){hint}",
            file=sys.stderr,
        )
    if note := limit_note(at_limit, num_translated, loaded.hp):
        print(note, file=sys.stderr)
    return None if dialog else last


def read_both(source, path):
    """Read the lines of the source, and of a file that has a line for each, two lists of str."""
    sides = [*read_lines(source)], [*read_lines(path)]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{path}: {len(sides[1])} lines, but {source} has {len(sides[0])}. Make line n of one"
            " file belong to line n of the other"
        )
    return sides


def main(given):
    """Translate the text that the flags name, or score given translations.

    Args:
      given: dict, the flags of the command line.
    """
    options = TranslateFlags.of(given)
    if options.source == "-":
        start_quickly()
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for translations only
        loaded = load_model(given)
    if options.nbest > loaded.hp.beam:
        raise InputError(
            f"nbest is {options.nbest}, but beam is {loaded.hp.beam}, and there is one translation"
            f" per hypothesis at most. Use --beam {options.nbest}"
        )
    if {options.attention, options.alignments} != {NONE} and not loaded.hp.has_attention:
        raise InputError("attention and alignments need a model with attention")
    if options.score != NONE:
        return score_file(options, loaded, *read_both(options.source, options.score))
    prefixes = read_both(options.source, options.prefix)[1] if options.prefix != NONE else None
    translator = make_translator(loaded, options.protect, SearchDecoder(loaded, options.nbest))
    if last := translate_stream(options, translator, prefixes):
        draw_translation(loaded, last, options.attention)


if __name__ == "__main__":
    run_script(main, given)
