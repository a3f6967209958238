"""Translate text, line by line, with the model in logdir.

    python translate.py < in > out
    python translate.py --source in --output out

Each line of the input gives one line of the output, in the same order. On a terminal the
program asks for one sentence at a time."""

import contextlib
import dataclasses
import itertools
import os
import queue
import sys
import threading
import time
from functools import partial
from pathlib import Path

from choices import ENGINES
from hparams import ATTENDS, SEARCH_FLAGS, Hyperparams, read_trained
from runtime.cli import parse_flags, run_script
from runtime.errors import InputError
from runtime.files import (
    atomic_open,
    check_exists,
    check_outputs,
    check_regular_file,
    is_shown,
    is_utf8,
    make_folder,
    open_output,
)
from runtime.flags import NONE, Condition, Flags, check_not_given, flag

# Conditions of rules.
SOURCE_FILE = Condition(lambda path: path != "-", "the file of the sources, --{name}")
NO_SCORE = Condition(lambda path: path == NONE, "translations, and --score makes none")

# Declare a flag that has no effect with --score.
translation_flag = partial(flag, only_with=dict(score=NO_SCORE))


@dataclasses.dataclass(frozen=True)
class TranslateFlags(Flags):
    """The flags of this script."""

    source: str = flag(
        "-", "file to translate, one sentence per line; -: standard input", path=True
    )
    output: str = flag("-", "file to write the translations to; -: standard output", path=True)
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
    )
    replace_unknown: bool = translation_flag(
        False,
        "replace each <UNK> by the source word that it pays the most attention to",
        needs=dict(tokenizer="words", has_attention=ATTENDS),
    )
    engine: str = translation_flag(
        "tensorflow",
        "library that decodes; ctranslate2 can run the recipes updated, paper and tiny",
        choices=ENGINES,
    )
    quantization: str = flag(
        "float32",
        "type of the matrices in CTranslate2",
        choices=("float32", "int8"),
        only_with=dict(engine="ctranslate2"),
    )

    def __post_init__(self):
        super().__post_init__()
        if self.attention != NONE and not self.attention.endswith(".png"):
            raise InputError(
                f"attention {self.attention}: must be a PNG file. Choose a name that ends in .png"
            )
        check_outputs(self, ["output", "attention", "alignments"], ["source", "score", "prefix"])


def check_inputs(flags):
    """Raise InputError if there is no model or no text, before TensorFlow is loaded."""
    options, flags = TranslateFlags.split(flags)
    if hp := read_trained(flags):
        options.check_needs(hp)
    for name in ("source", "score", "prefix"):
        if getattr(options, name) not in ("-", NONE):
            check_exists(getattr(options, name), f"Check the path, which --{name} names")


if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    flags = parse_flags(__doc__, Hyperparams, TranslateFlags, reads_model=True, check=check_inputs)

import numpy as np
from tqdm import tqdm

import checkpoint
from bleu import LITTLE_LEARNED_HINT, empty_note
from data_load import encode_lines
from ids import RaggedIds
from inference import (
    LineScore,
    Scorer,
    Translator,
    describe_decoding,
    limit_hint,
    limit_note,
    load_model,
)
from interop import ctranslate2_model
from monitor.attention_maps import (
    MAX_PICTURE_TOKENS,
    alignments,
    append_eos,
    plot_heads,
    save_png,
    word_alignments,
)
from runtime.workers import translate_distributed, worker_rank
from text import GZIP_MAGIC, blocks, decode_utf8, read_lines
from vocab import SPECIALS, UNK

MAX_BATCH_LINES = 1000  # lines that are translated together, sorted by length
BATCH_WAIT_SECONDS = 0.05  # the first line of a batch waits so long for others
SOURCE_HINT = "Check the path, which --source names"

# Reading and writing lines -----------------------------------------------------


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


LINE, END, ERROR = "line", "end", "error"  # the kinds of items that a reader queues


def queue_lines(lines, items):
    """Put pairs of kind and value into a queue: the lines, and then their end or an error."""
    try:
        for line in lines:
            items.put((LINE, line))
        items.put((END, None))
    except Exception as error:
        items.put((ERROR, error))


def batch_as_available(lines):
    """Yield lists of lines: the next line, and those that follow within BATCH_WAIT_SECONDS.

    A line that comes alone is thus translated at once, and many lines are translated together.
    An exception of `lines` is raised after the lines before it have been yielded.
    """
    items = queue.Queue(2 * MAX_BATCH_LINES)
    threading.Thread(target=queue_lines, args=(lines, items), daemon=True).start()
    kind = LINE
    while kind == LINE:
        kind, value = items.get()
        deadline = time.monotonic() + BATCH_WAIT_SECONDS
        batch = []
        while kind == LINE:
            batch.append(value)
            if len(batch) == MAX_BATCH_LINES:
                break
            try:
                kind, value = items.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        if batch:
            yield batch
    if kind == ERROR:
        raise value


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
        return batch_as_available(decode_utf8("standard input", open(0, "rb", closefd=False)))
    return batch_as_available(read_lines(source, SOURCE_HINT))


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


def format_line(number, hypotheses, nbest) -> bytes:
    """Format the translations of a line for the output.

    Args:
      number: of the line, counted from 0.
      hypotheses: list of pairs of text and score, best first.
      nbest: translations per line; with 1, the output is the text alone.
    """
    if nbest == 1:
        return f"{hypotheses[0][0]}\n".encode()
    return "".join(f"{number} ||| {text} ||| {score:.4f}\n" for text, score in hypotheses).encode()


# Attention ---------------------------------------------------------------------


def draw_attention(translator, model, line, prefix, path):
    """Draw how a line is translated.

    The source tokens label the columns, those of the translation the rows, MAX_PICTURE_TOKENS of
    each at most.

    Args:
      prefix: the first words of the translation, or None.
    """
    hp, (source, target) = translator.hp, translator.vocabs
    X, _, _ = encode_lines([line], source, hp)
    prefixes = None if prefix is None else translator.encode_prefixes([prefix])
    ((ids, _), *_) = translator.decode_ids(X, prefixes)[0]
    x, y = X[0], append_eos(ids, hp)
    (weights,) = alignments(model, hp, X, RaggedIds.from_lists([y]))
    x_labels = [*map(source.id_to_token, x[:MAX_PICTURE_TOKENS])]
    y_labels = [*map(target.id_to_token, y[:MAX_PICTURE_TOKENS])]
    figure = plot_heads(weights[None, : len(y_labels), : len(x_labels)], x_labels, y_labels)
    with atomic_open(path) as file:
        save_png(figure, file)
    part = f", {MAX_PICTURE_TOKENS} tokens" if max(len(x), len(y)) > MAX_PICTURE_TOKENS else ""
    print(f"{path}: attention of the last translation{part}", file=sys.stderr)


def replace_unknown(model, hp, vocabs, lines, texts):
    """Replace each `<UNK>` by the source word that it pays the most attention to.

    Args:
      vocabs: two `WordVocab`.
      lines, texts: sentences and their translations, lists of str.

    Returns:
      list of str
    """
    texts = list(texts)
    rows = [row for row, text in enumerate(texts) if SPECIALS[UNK] in text.split()]
    X, nonempty, _ = encode_lines([lines[row] for row in rows], vocabs[0], hp)
    rows = [rows[i] for i in nonempty]
    ids = vocabs[1].encode(texts[row] for row in rows)
    Y = RaggedIds.from_lists([append_eos(y, hp) for y in ids])
    for row, weights in zip(rows, alignments(model, hp, X, Y), strict=True):
        source_words = vocabs[0].prepare([lines[row]])[0].split()
        indices = np.argmax(weights[:, :-1], axis=1)  # (T_y,), not that of </S>
        words = texts[row].split()
        # One index more than words, for </S>; fewer if a --prefix has words that are no tokens.
        for j, i in enumerate(indices[: len(words)]):
            if words[j] == SPECIALS[UNK]:
                words[j] = source_words[i]
        texts[row] = " ".join(words)
    return texts


class AlignmentFile:
    """A file of bytes. An error of writing does not end the translation.

    Attributes:
      error: the first error of writing, or None.
    """

    def __init__(self, file):
        self.file, self.error = file, None

    def write(self, content):
        """Write bytes, unless there was an error."""
        if not self.error:
            try:
                self.file.write(content)
            except OSError as error:
                self.error = error


@contextlib.contextmanager
def open_alignments(path):
    """Context manager: the `AlignmentFile`, or None. It raises the error of writing at its end."""
    if path == NONE:
        yield None
        return
    with atomic_open(path) as file:
        alignment_file = AlignmentFile(file)
        yield alignment_file
        if alignment_file.error:
            raise alignment_file.error


def write_alignments(file, model, hp, vocabs, lines, texts):
    """Write the word alignments of lines and their translations, a line for each."""
    aligned = word_alignments(model, hp, vocabs, lines, texts)
    file.write("".join(f"{pairs}\n" for pairs in aligned).encode())


def read_other_side(source, num_lines, path, name, remedy) -> list[str]:
    """Read a file that has a line for each line of the source.

    Args:
      source: the path of the source, which has `num_lines` lines.
      path: the value of the flag `name`.
      remedy: the end of the message if the files differ in length.
    """
    lines = list(read_lines(path, f"Check the path, which --{name} names"))
    if len(lines) != num_lines:
        raise InputError(f"{source}: {num_lines} lines, but {path} has {len(lines)}. {remedy}")
    return lines


# Scoring -----------------------------------------------------------------------


def score_file(options, hp, model, vocabs):
    """Score the translations in a file, and align them if the flags say so."""
    lines = list(read_lines(options.source, SOURCE_HINT))
    remedy = "Make line n of one file the translation of line n of the other"
    translations = read_other_side(options.source, len(lines), options.score, "score", remedy)
    scorer = Scorer(hp, model, vocabs)
    logp = num_tokens = num_scored = 0
    # The output has its name before an error of the alignments is raised.
    files = open_alignments(options.alignments), open_output(options.output)
    no_bar = is_shown(options.output)
    bar = tqdm(
        desc="scoring", total=len(lines), disable=no_bar, leave=False, delay=1, unit=" lines"
    )
    with files[0] as alignment_file, files[1] as file, bar:
        for pairs in blocks(zip(lines, translations, strict=True), MAX_BATCH_LINES):
            texts = [*zip(*pairs, strict=True)]
            for score in scorer(*texts):
                file.write(f"{score.logp:.4f}\t{score.perplexity:.4f}\n".encode())
                if score.num_tokens:
                    logp, num_tokens = logp + score.logp, num_tokens + score.num_tokens
                    num_scored += 1
            if alignment_file:
                write_alignments(alignment_file, model, hp, vocabs, *texts)
            bar.update(len(pairs))
    print(
        f"{num_scored} of {len(lines)} lines, {num_tokens} {vocabs[1].token_name}: log-probability"
        f" {logp:.4f}, perplexity {LineScore(logp, num_tokens).perplexity:.4f}",
        file=sys.stderr,
    )
    if count := scorer.truncated:
        lines = "1 line is" if count == 1 else f"{count} lines are"
        limit = f"{hp.max_input_tokens - 1} {vocabs[1].token_name}"
        print(f"{lines} longer than {limit} on a side: nan", file=sys.stderr)


# Translating -------------------------------------------------------------------


def make_translator(options, hp, model, vocabs) -> Translator:
    """Make the translator that the flags name.

    Args:
      options: TranslateFlags.
      hp, model, vocabs: as `load_model` returns them.
    """
    decode = None
    if options.engine == "ctranslate2":
        decode = ctranslate2_model.CTranslate2Decoder(
            hp, model, vocabs, options.nbest, options.quantization
        )
    return Translator(hp, model, vocabs, options.nbest, decode)


def pair_up(lines, translations):
    """List each line as often as it has translations, and the texts of these."""
    pairs = zip(lines, translations, strict=True)
    pairs = [(line, text) for line, best in pairs for text, _ in best]
    return tuple(map(list, zip(*pairs, strict=True)))


def translate_batch(translator, model, options, lines, prefixes=None):
    """Translate lines, and replace unknown words if the flags say so.

    Args:
      prefixes: the first words of the translations, list of str, or None.

    Returns:
      list: for each line its translations, best first: pairs of text and score.
    """
    translations = translator(lines, prefixes=prefixes)
    if options.replace_unknown:
        pairs = pair_up(lines, translations)
        texts = iter(replace_unknown(model, translator.hp, translator.vocabs, *pairs))
        translations = [[(next(texts), score) for _, score in best] for best in translations]
    return translations


def translate_stream(translator, model, options, file, alignment_file):
    """Translate lines as they come, with a progress bar unless the terminal shows the lines.

    Args:
      file: file of bytes to write the translations to.
      alignment_file: AlignmentFile, or None.

    Returns:
      The last line that is not empty and the first words of its translation, if `--attention` is
      to draw them when the output is complete; else None.
    """
    hp, vocabs = translator.hp, translator.vocabs
    total = count_lines(options.source)
    no_bar = total is None or is_shown(options.output)
    bar = tqdm(desc="translating", total=total, disable=no_bar, unit=" lines")
    prefixes = None
    if options.prefix != NONE:
        reason = "with --prefix it is read twice. Write the text to a file"
        check_regular_file(options.source, reason)
        num_lines = sum(1 for _ in read_lines(options.source, SOURCE_HINT))
        remedy = "Give one line, which may be empty, for each line of the source"
        prefixes = iter(
            read_other_side(options.source, num_lines, options.prefix, "prefix", remedy)
        )
    numbers = itertools.count()
    recent = []  # translations that show whether the model has learned anything
    last = None  # the last line that is not empty, and its prefix
    with bar:
        for lines in read_batches(options.source, prompt=hp.source_lang):
            some = prefixes and [*itertools.islice(prefixes, len(lines))]
            translations = translate_batch(translator, model, options, lines, some)
            for line, best in zip(lines, translations, strict=True):
                file.write(format_line(next(numbers), best, options.nbest))
                if line.strip():
                    recent.append(best[0][0])
            if alignment_file:
                pairs = pair_up(lines, translations)
                write_alignments(alignment_file, model, hp, vocabs, *pairs)
            del recent[:-MAX_BATCH_LINES]
            file.flush()
            if options.attention != NONE and (nonempty := encode_lines(lines, vocabs[0], hp)[1]):
                last = lines[nonempty[-1]], some and some[nonempty[-1]]
                if is_dialog(options.source):  # after each sentence
                    draw_attention(translator, model, *last, options.attention)
            bar.update(len(lines))
    if note := empty_note(recent):
        print(f"{note}. {LITTLE_LEARNED_HINT}", file=sys.stderr)
    return None if is_dialog(options.source) else last


def translate_with_workers(translator, options, paths):
    """Translate a file together with other workers. The worker with rank 0 writes the output.

    Args:
      paths: the checkpoints of the model.
    """
    if "-" in (options.source, options.output):
        raise InputError("TF_CONFIG names several workers. Give --source and --output")
    single = options.attention, options.alignments, options.prefix
    if options.replace_unknown or {*single} != {NONE}:
        raise InputError(
            "replace_unknown, attention, alignments and prefix work in a single process only. Unset"
            " TF_CONFIG"
        )
    settings = [describe_decoding(translator.hp, paths), checkpoint.parameters_digest(paths)]
    settings += [options.nbest, options.engine, options.quantization]

    def translate_fn(X):
        return translate_distributed(
            translator.translate_ids, X, Path(options.output), str(settings)
        )

    translations = translator(list(read_lines(options.source, SOURCE_HINT)), translate_fn)
    if translations is not None:
        with atomic_open(options.output) as file:
            for number, best in enumerate(translations):
                file.write(format_line(number, best, options.nbest))


def main(flags):
    """Translate the text that the flags name.

    Args:
      flags: dict that `parse_flags` returned.
    """
    options, flags = TranslateFlags.split(flags)
    worker_rank()  # raises the InputError of a wrong TF_CONFIG
    if options.score != NONE:
        check_not_given(flags, SEARCH_FLAGS, "has no effect: with --score nothing is translated")
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for translations only
        paths, hp, model, vocabs = load_model(flags)
    if options.nbest > hp.beam:
        raise InputError(
            f"nbest is {options.nbest}, but beam is {hp.beam}, and there is one translation per"
            f" hypothesis at most. Use --beam {options.nbest}"
        )
    options.check_needs(hp)
    if options.score != NONE:
        if worker_rank()[1] > 1:
            raise InputError("score works in a single process only. Unset TF_CONFIG")
        return score_file(options, hp, model, vocabs)
    translator = make_translator(options, hp, model, vocabs)
    if worker_rank()[1] > 1:
        translate_with_workers(translator, options, paths)
    else:
        if options.attention != NONE:  # before the work of hours
            make_folder(Path(options.attention).parent)
        # The output has its name before an error of the alignments is raised.
        files = open_alignments(options.alignments), open_output(options.output)
        with files[0] as alignment_file, files[1] as file:
            last = translate_stream(translator, model, options, file, alignment_file)
        if last:  # not before both files have their names: the picture may fail
            draw_attention(translator, model, *last, options.attention)
    if count := translator.truncated:
        lines = "1 line was" if count == 1 else f"{count} lines were"
        print(f"{lines} truncated to {hp.max_input_tokens - 1} tokens", file=sys.stderr)
    if (count := translator.with_unknown) and (lacks := vocabs[0].lacks):
        lines = "1 line has" if count == 1 else f"{count} lines have"
        print(f"{lines} {lacks} that the vocabulary lacks", file=sys.stderr)
    if note := limit_note(translator.at_limit, translator.translated, hp):
        print(f"{note}. {limit_hint(hp)}", file=sys.stderr)


if __name__ == "__main__":
    run_script(main, flags)
