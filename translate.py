"""Translate text, line by line, with the model in logdir.

    python translate.py < in > out
    python translate.py --source in --output out

Each line of the input gives one line of the output, in the same order. On a terminal the
program asks for one sentence at a time. With --split, a line may be a paragraph."""

import contextlib
import dataclasses
import os
import sys
from pathlib import Path
from typing import NamedTuple

from runtime.cluster import worker_rank
from trained_models import find_trained

from choices import ENGINES, quantization_flag
from hparams import ATTENDS, SEARCH_FLAGS, Hyperparams
from runtime.cli import parse_flags, run_script
from runtime.errors import InputError
from runtime.files import (
    atomic_open,
    check_exists,
    check_outputs,
    check_regular_file,
    is_shown,
    make_folder,
    open_output,
)
from runtime.flags import NONE, Condition, Flags, check_not_given, flag
from runtime.parallel import one_thread_per_operation

SOURCE_HINT = "Check the path, which --source names"

# Conditions of rules.
SOURCE_FILE = Condition(lambda path: path != "-", "the file of the sources, --{name}")
NO_SCORE = Condition(lambda path: path == NONE, "translations, and --score makes none")
NO_PREFIX = Condition(lambda path: path == NONE, "translations without --prefix")


def translation_flag(*args, needs=None, remedy="Leave it out", **metadata):
    """Declare a flag that has no effect with --score."""
    return flag(*args, needs=dict(score=NO_SCORE) | (needs or {}), remedy=remedy, **metadata)


@dataclasses.dataclass(frozen=True)
class TranslateFlags(Flags):
    """The flags of this script."""

    source: str = flag(
        "-",
        "file to translate, one sentence per line, or with --split one paragraph; -: standard"
        " input",
        path=True,
    )
    output: str = flag("-", "file to write the translations to; -: standard output", path=True)
    split: bool = translation_flag(
        False,
        "split each line into sentences, and sentences of more than maxlen tokens into parts;"
        " a line of the output has all their translations",
        needs=dict(nbest=1, prefix=NO_PREFIX),
        remedy="Leave one of the two out: it is for lines of one sentence",
    )
    nbest: int = translation_flag(
        1,
        "translations per line, at most --beam; if more than 1, the output has a line `number |||"
        " translation ||| score` for each of them, with the numbers of the lines counted from 0",
        1,
        1001,
    )
    attention: str = translation_flag(
        NONE,
        "PNG file, for example out.png, that shows the attention of the last translation; none:"
        " no picture",
        path=True,
        needs=dict(has_attention=ATTENDS),
    )
    protect: bool = translation_flag(
        True,
        "keep URLs, e-mail addresses, placeholders such as {name} and %s, tags, emoji, numbers, and"
        " characters that the vocabulary lacks; with subwords",
    )
    alignments: str = flag(
        NONE,
        "file for the word alignment of each translation: 0-0 1-2 aligns word 0 of the source"
        " with word 0 of the translation, and word 1 with word 2; none: no file",
        path=True,
        needs=dict(has_attention=ATTENDS),
    )
    score: str = flag(
        NONE,
        "file with a translation for each line of --source; the output has the log-probability"
        " and the perplexity of each, in place of translations",
        path=True,
        needs=dict(source=SOURCE_FILE),
        remedy="Give --source",
    )
    prefix: str = translation_flag(
        NONE,
        "file with the first words of the translation of each line of --source, which it then"
        " continues; none: no file",
        path=True,
        needs=dict(source=SOURCE_FILE, engine="tensorflow"),
        remedy="Leave it out, or give --source",
    )
    replace_unknown: bool = translation_flag(
        False,
        "replace each <UNK> by the source word that it pays the most attention to",
        needs=dict(tokenizer="words", has_attention=ATTENDS),
    )
    engine: str = translation_flag(
        "tensorflow",
        "library that decodes; ctranslate2 can run all recipes but legacy and the recurrent ones",
        choices=ENGINES,
    )
    quantization: str = quantization_flag("engine", ENGINES)

    def __post_init__(self):
        super().__post_init__()
        if self.attention != NONE and not self.attention.endswith(".png"):
            raise InputError(
                f"attention {self.attention}: must be a PNG file. Choose a name that ends in .png"
            )
        check_outputs(self, ["output", "attention", "alignments"], ["source", "score", "prefix"])


def settle(flags):
    """Read the files that the flags name, before TensorFlow is loaded; see `main`."""
    # Here, since `parse_flags` has a message for an environment without packages.
    from text import read_lines

    options, flags = TranslateFlags.separate(flags)
    check_workers(options)
    models = find_trained(flags)
    choice = ENGINES[options.engine]
    choice.check_ready(models, f"--engine {options.engine}", options.quantization)
    if models[0].hp:
        check_model(options, models[0].hp)
    for name in ("source", "score", "prefix"):
        if getattr(options, name) not in ("-", NONE):
            check_exists(getattr(options, name), f"Check the path, which --{name} names")
    if options.score != NONE:
        check_not_given(flags, SEARCH_FLAGS, "has no effect: with --score nothing is translated")
    # Scores are computed batch by batch, and from "-", sentences may come one by one.
    if options.score == NONE and options.source != "-":
        one_thread_per_operation()
    scored = prefixes = None
    if options.score != NONE:
        scored = read_scored(options)
    elif options.prefix != NONE:
        prefixes = read_prefixes(options)
    elif os.path.isfile(options.source) or os.path.isdir(options.source):  # no pipe
        next(read_lines(options.source, SOURCE_HINT), None)  # for its errors
    return options, models, scored, prefixes


def check_model(options, hp):
    """Raise InputError if a flag needs another model, or another search."""
    if options.nbest > hp.beam:
        raise InputError(
            f"nbest is {options.nbest}, but beam is {hp.beam}, and there is one translation per"
            f" hypothesis at most. Use --beam {options.nbest}"
        )
    options.check_needs(hp)


def check_workers(options):
    """Raise InputError if a flag needs a single process, but TF_CONFIG names several workers."""
    if worker_rank()[1] == 1:
        return
    for name in ("score", "prefix", "attention", "alignments", "replace_unknown"):
        if getattr(options, name) not in (NONE, False):
            raise InputError(f"{name} works in a single process only. Unset TF_CONFIG")
    if "-" in (options.source, options.output):
        raise InputError("TF_CONFIG names several workers. Give --source and --output")


def read_other_side(source, num_lines, path, name, remedy) -> list[str]:
    """Read a file that has a line for each line of the source.

    Args:
      source: the path of the source, which has `num_lines` lines.
      path: the value of the flag `name`.
      remedy: the end of the message if the files differ in length.
    """
    from text import read_lines  # here, as in `settle`

    lines = list(read_lines(path, f"Check the path, which --{name} names"))
    if len(lines) != num_lines:
        raise InputError(f"{source}: {num_lines} lines, but {path} has {len(lines)}. {remedy}")
    return lines


def read_scored(options):
    """Read the lines of the source and the translations to score, lists of str.

    Args:
      options: TranslateFlags.
    """
    from text import read_lines  # here, as in `settle`

    lines = list(read_lines(options.source, SOURCE_HINT))
    remedy = "Make line n of one file the translation of line n of the other"
    return lines, read_other_side(options.source, len(lines), options.score, "score", remedy)


def read_prefixes(options) -> list[str]:
    """Read the first words of each translation.

    Args:
      options: TranslateFlags.
    """
    from text import read_lines  # here, as in `settle`

    check_regular_file(options.source, "with --prefix it is read twice. Write the text to a file")
    num_lines = sum(1 for _ in read_lines(options.source, SOURCE_HINT))
    remedy = "Give one line, which may be empty, for each line of the source"
    return read_other_side(options.source, num_lines, options.prefix, "prefix", remedy)


if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    settled = parse_flags(__doc__, settle, Hyperparams, TranslateFlags, reads_model=True)

import numpy as np
from tqdm import tqdm

import checkpoint
from bleu import LITTLE_LEARNED_HINT, empty_note
from inference import SharedDecoder, describe_decoding, load_model, start_quickly
from monitor.attention_maps import (
    align_translations,
    draw_translation,
    ids_by_words,
    replace_unknown,
    word_alignments,
    word_indices,
)
from paragraphs import Paragraph, Splitter
from protected import make_translator
from runtime.lines import batch_as_available, prompt_lines
from score import LineScore, Scorer
from text import GZIP_MAGIC, blocks, decode_utf8, read_lines

MAX_BATCH_LINES = 1000  # lines that are translated together, sorted by length
SPLIT_HINT = "With --split, all of a long line is translated, part by part"

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
        lines = read_lines(source, SOURCE_HINT)
    return batch_as_available(lines, MAX_BATCH_LINES)


def count_lines(path) -> int | None:
    """Count the line feeds in a file. None: it is not a regular file, or is compressed."""
    if not os.path.isfile(path):
        return None
    try:
        file = open(path, "rb")
    except OSError:
        return None  # `read_lines` has a message for it
    with file:
        if file.peek(2)[:2] == GZIP_MAGIC:
            return None
        return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))


class TranslatedLine(NamedTuple):
    """A line as a paragraph. Without --split, it is one sentence."""

    paragraph: Paragraph
    translations: list  # the Translation of each sentence

    def format(self, number, nbest) -> bytes:
        """Format the translations for the output.

        Args:
          number: of the line, counted from 0.
          nbest: translations per line; with 1, the output is the text alone.
        """
        if nbest == 1:
            text = self.paragraph.join([own.text for own in self.translations])
            return " ".join(text.splitlines()).encode() + b"\n"  # U+2028 for example ends no line
        (translation,) = self.translations
        rows = (f"{number} ||| {own.text} ||| {own.score:.4f}\n" for own in translation.hypotheses)
        return "".join(rows).encode()

    def alignments(self, loaded) -> list[str]:
        """Align the words of the line with those of each of its translations."""
        aligned = align_translations(loaded, self.translations)
        if len(self.translations) == 1:
            return aligned
        joints = self.paragraph.joints([own.text for own in self.translations])
        pairs, offsets = [], [0, 0]  # the words of the sentences before
        for translation, sentence_pairs, symbol, *spaces in zip(
            self.translations,
            aligned,
            self.paragraph.symbols,
            self.paragraph.gaps[1:],
            joints,
            strict=True,
        ):
            offsets[0] -= bool(symbol)  # the first word that the model read is not in the line
            for pair in sentence_pairs.split():
                words = [*map(int, pair.split("-"))]
                if words[0] >= bool(symbol):
                    pairs.append("-".join(map(str, map(sum, zip(words, offsets, strict=True)))))
            sides = translation.ids[:-1], ids_by_words(loaded, translation.hypotheses[0])
            for side, (ids, space) in enumerate(zip(sides, spaces, strict=True)):
                words = word_indices(ids, loaded.vocabs[side])[-1] + 1 if len(ids) else 0
                # Without a space, the next sentence continues the last word.
                offsets[side] += words - (words > 0 and not space)
        return [" ".join(pairs)]


class LineTranslator:
    """Translate lines as the flags say.

    Args:
      options: TranslateFlags.
      translator: Translator.
    """

    def __init__(self, options, translator):
        loaded = translator.loaded
        self.translator, self.replaces_unknown = translator, options.replace_unknown
        self.split = lambda line: Paragraph([line], ["", ""])
        if options.split:
            self.split = Splitter(loaded.hp.source_lang, loaded.vocabs[0], loaded.hp.maxlen)

    def __call__(self, lines, prefixes=None) -> list[TranslatedLine]:
        """Translate lines, as a `Translator`."""
        paragraphs = [*map(self.split, lines)]
        sentences = [sentence for paragraph in paragraphs for sentence in paragraph.inputs]
        translations = self.translator(sentences, prefixes)
        if self.replaces_unknown:
            translations = replace_unknown(self.translator.loaded, translations)
        rest = iter(translations)
        return [
            TranslatedLine(paragraph, [next(rest) for _ in paragraph.sentences])
            for paragraph in paragraphs
        ]


@contextlib.contextmanager
def open_outputs(options):
    """Context manager: the file of bytes for the output, and the function `open_alignments`.

    The output has its name before an error of the alignments is raised.

    Args:
      options: TranslateFlags.
    """
    with open_alignments(options.alignments) as write_alignments:
        with open_output(options.output) as file:
            yield file, write_alignments


@contextlib.contextmanager
def open_alignments(path):
    """Context manager: a function that writes lines to a file, or None if there is no file.

    An error of writing does not end the translation. It is raised at the end.
    """
    if path == NONE:
        yield None
        return
    errors = []
    with atomic_open(path) as file:

        def write_lines(lines):
            try:
                if not errors:
                    file.write("".join(f"{line}\n" for line in lines).encode())
            except OSError as error:
                errors.append(error)

        yield write_lines
        if errors:
            raise errors[0]


# Scoring -----------------------------------------------------------------------


def score_file(options, loaded, lines, translations):
    """Score the translation of each line, and align them if the flags say so."""
    scorer, totals = Scorer(loaded), np.zeros(3)  # log-probability, tokens, lines with a score
    no_bar = is_shown(options.output)
    bar = tqdm(
        desc="scoring", total=len(lines), disable=no_bar, leave=False, delay=1, unit=" lines"
    )
    with open_outputs(options) as (file, write_alignments), bar:
        for pairs in blocks(zip(lines, translations, strict=True), MAX_BATCH_LINES):
            scores = scorer(*zip(*pairs, strict=True))
            for score in scores:
                file.write(f"{score.logp:.4f}\t{score.perplexity:.4f}\n".encode())
                if score.num_tokens:
                    totals += score.logp, score.num_tokens, 1
            if write_alignments:
                sides = [(score.source_ids, score.target_ids) for score in scores]
                write_alignments(word_alignments(loaded, sides))
            bar.update(len(pairs))
    logp, num_tokens, num_scored = totals
    token_name = loaded.vocabs[1].token_name
    print(
        f"{num_scored:.0f} of {len(lines)} lines, {num_tokens:.0f} {token_name}: log-probability"
        f" {logp:.4f}, perplexity {LineScore(logp, num_tokens).perplexity:.4f}",
        file=sys.stderr,
    )
    if count := scorer.truncated:
        lines = "1 line is" if count == 1 else f"{count} lines are"
        limit = f"{loaded.hp.max_input_tokens - 1} {token_name}"
        print(f"{lines} longer than {limit} on a side: nan", file=sys.stderr)


# Translating -------------------------------------------------------------------


def translate_stream(options, translator, prefixes, file, write_alignments):
    """Translate lines as they come, with a progress bar unless the terminal shows the lines.

    Args:
      options: TranslateFlags.
      prefixes: the first words of each translation, list of str; None: none.
      file: file of bytes to write the translations to.
      write_alignments: function of lines, or None.

    Returns:
      The last `Translation` of a line that is not empty, if `--attention` is to draw it when the
      output is complete; else None.
    """
    loaded, total = translator.loaded, count_lines(options.source)
    no_bar = total is None or is_shown(options.output)
    translate = LineTranslator(options, translator)
    number = 0  # of the next line
    recent = []  # translations that show whether the model has learned anything
    last = None
    with tqdm(desc="translating", total=total, disable=no_bar, unit=" lines") as bar:
        for lines in read_batches(options.source, prompt=loaded.hp.source_lang):
            translated = translate(lines, prefixes and prefixes[number : number + len(lines)])
            for line in translated:
                file.write(line.format(number, options.nbest))
                number += 1
            if write_alignments:
                write_alignments(own for line in translated for own in line.alignments(loaded))
            translations = [own for line in translated for own in line.translations]
            file.flush()
            recent += [own.text for own in translations if own.line.strip()]
            del recent[:-MAX_BATCH_LINES]
            nonempty = [translation for translation in translations if len(translation.ids)]
            if options.attention != NONE and nonempty:
                last = nonempty[-1]
                if is_dialog(options.source):  # after each sentence
                    draw_translation(loaded, last, options.attention)
            bar.update(len(lines))
    if note := empty_note(recent):
        print(f"{note}. {LITTLE_LEARNED_HINT}", file=sys.stderr)
    return None if is_dialog(options.source) else last


def translate_alone(options, translator, prefixes):
    """Translate what the flags name in this process, and draw the attention at the end."""
    if options.attention != NONE:  # before the work of hours
        make_folder(Path(options.attention).parent)
    with open_outputs(options) as outputs:
        last = translate_stream(options, translator, prefixes, *outputs)
    if last:  # not before both files have their names: the picture may fail
        draw_translation(translator.loaded, last, options.attention)


def translate_with_workers(options, translator):
    """Translate a file together with other workers. The worker with rank 0 writes the output.

    Args:
      translator: Translator that has the decoder of a single worker.
    """
    loaded = translator.loaded
    settings = [describe_decoding(loaded), checkpoint.parameters_digest(loaded.paths)]
    settings += [
        options.split,
        options.protect,
        options.nbest,
        options.engine,
        options.quantization,
    ]
    translator.decode = SharedDecoder(translator.decode, Path(options.output), str(settings))
    lines = list(read_lines(options.source, SOURCE_HINT))
    translated = LineTranslator(options, translator)(lines)
    if worker_rank()[0] == 0:
        with atomic_open(options.output) as file:
            for number, line in enumerate(translated):
                file.write(line.format(number, options.nbest))


def main(options, models, scored, prefixes):
    """Translate the text that the flags name, or score given translations.

    Args:
      options: TranslateFlags.
      models: list of `Trained`.
      scored: the lines and translations to score, or None.
      prefixes: the first words of each translation, or None.
    """
    if options.source == "-":
        start_quickly()
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for translations only
        loaded = load_model(models)
    check_model(options, loaded.hp)  # also of one of the 2017 code
    if options.score != NONE:
        return score_file(options, loaded, *scored)
    choice = ENGINES[options.engine]
    more = dict(quantization=options.quantization) if choice.quantizes else {}
    decode = choice.load()(loaded, options.nbest, **more)
    unit = "sentence" if options.split else "line"
    translator = make_translator(loaded, options.protect, decode, unit=unit)
    if worker_rank()[1] > 1:
        translate_with_workers(options, translator)
    else:
        translate_alone(options, translator, prefixes)
    for note in translator.notes():
        print(note, file=sys.stderr)
    if translator.truncated and not options.split:
        print(SPLIT_HINT, file=sys.stderr)


if __name__ == "__main__":
    run_script(main, *settled)
