"""Text: reading its files, and cutting sentences into words or pieces with numbers.

Text is read a line at a time and a line ends at its line feed alone, so that no
other character that counts as a line break somewhere (U+2028, U+0085, a lone
carriage return) can shift one side of a parallel corpus against the other.
"""

import concurrent.futures
import functools
import hashlib
import html
import itertools
import os
from pathlib import Path

import numpy as np
import regex
import sentencepiece

from hparams import AUTO, Hyperparams, InputError, write_whole

PAD, UNK, START, END = range(4)  # ids of the four words that open each vocabulary
SPECIALS = ("<PAD>", "<UNK>", "<S>", "</S>")

MISSING_CORPUS_HINT = (
    "This default is the documented corpus, IWSLT 2016 German-English (README.md says where to get"
    " it). Name your own text with --source_train and --target_train, or run `make demo`, which"
    " trains on a built-in corpus"
)
MISSING_TEST_HINT = "Name a test set with --source_test and --target_test"
MAX_COUNT_DIGITS = 18  # of how often a word was seen
RUN_PREPRO_HINT = (
    "Run `python prepro.py` first, with the same --recipe, --preprocessed, --source_lang and"
    " --target_lang"
)


# Reading -----------------------------------------------------------------------

BLOCK = 10_000  # lines that are text at once: Python's objects take far more room than ids


def in_blocks(lines):
    """Yield lists of `BLOCK` lines, and of those that are left.

    >>> [len(block) for block in in_blocks("x" * 25_000)]
    [10000, 10000, 5000]
    """
    lines = iter(lines)
    while block := list(itertools.islice(lines, BLOCK)):
        yield block


def check_text_files(hp, part):
    """Check that both files of a part of the corpus exist.

    Args:
      part: "train", "dev" or "test".

    Raises:
      InputError: one of them does not; the message depends on who chose its name.
    """
    for name in (f"source_{part}", f"target_{part}"):
        path = getattr(hp, name)
        if os.path.exists(path):
            continue
        hint = f"Check the path, which --{name} names"
        if path == getattr(Hyperparams, name):
            hint = MISSING_TEST_HINT if part == "test" else MISSING_CORPUS_HINT
        raise InputError(f"{path}: no such file. {hint}")


def read_lines(path, hint="Check the path"):
    """Yield the lines of a UTF-8 file, without line ends and byte-order mark.

    Args:
      hint: what to do if there is no such file.

    Raises:
      InputError: no such file, or bytes that are not UTF-8 (names the line).
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror.lower()}. {hint}") from None
    with file:
        if file.peek(2)[:2] == b"\x1f\x8b":
            raise InputError(f"{path}: a gzip file, not text: unpack it first (gzip -d)")
        yield from decode_lines(path, file)


def decode_lines(name, lines):
    """Yield lines of bytes as text, without line ends and byte-order mark.

    Args:
      name: where they come from, for messages.

    Raises:
      InputError: bytes that are not UTF-8 (names the line).
    """
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}:{number}: byte {error.start + 1} of this line is not UTF-8:"
                " convert the file (for example: iconv -f latin1 -t utf-8)"
            ) from None
        yield text.removeprefix("\ufeff" if number == 1 else "").rstrip("\r\n")


def clean(line):
    """Drop what is neither white space, a Latin letter nor an apostrophe.

    >>> clean("She isn't 26 -- she's naïve.")
    "She isn't   she's naïve"
    """
    return regex.sub(r"[^\s\p{Latin}']", "", line)


def drop_tags(lines, tags=None):
    """Yield the lines that do not open with a tag.

    Args:
      tags: a list, which gets the numbers of those that do, counted from 1.
    """
    for number, line in enumerate(lines, 1):
        if not line.startswith("<"):
            yield line
        elif tags is not None:
            tags.append(number)


def read_corpus(path, tags=None):
    """Yield the sentences of a training file: its lines, without those that open with a tag."""
    return drop_tags(read_lines(path), tags)


def read_test(path, tags=None):
    """The sentences of a test file.

    Those between `<seg>` tags where the file has any, as in IWSLT's XML; else the
    lines, as of a training file.

    Returns:
      (list, list, list): the sentences as the documents clean them, and as a person
      would read them; and what `read_segments` tells of each, or nothing.

    Raises:
      InputError: as `read_lines` and `read_segments`.
    """
    lines = list(read_lines(path))
    if not any(map(opens_segment, lines)):
        raw = list(drop_tags(lines, tags))
        return [clean(line).strip() for line in raw], raw, []
    text = replace_spans("\n".join(lines), "<!--", "-->", lambda comment: "")
    text = replace_spans(text, "<![CDATA[", "]]>", html.escape)
    inner, places = read_segments(path, text)
    raw = [one_line(html.unescape(segment)) for segment in inner]
    return [clean(segment).strip() for segment in inner], raw, places


def opens_segment(line):
    """Whether a `<seg>` is on the line, with nothing but tags before it.

    >>> opens_segment('<doc> <seg id="1">a'), opens_segment("a <seg> is a tag")
    (True, False)
    """
    match = regex.search(r"<seg\b", line, regex.IGNORECASE)
    return bool(match and regex.fullmatch(r"(?:\s|<[^>]*+>)*+", line[: match.start()]))


def replace_spans(text, opening, closing, change):
    """Replace what stands between two marks, and the marks; lines keep their numbers.

    Args:
      change: function of the text between them.

    >>> replace_spans("a<!-- b -->c<!-- d", "<!--", "-->", lambda comment: "")
    'ac<!-- d'
    """
    outputs, position = [], 0
    while (start := text.find(opening, position)) >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        span = change(text[start + len(opening) : end])
        missing = text.count("\n", start, end) - span.count("\n")
        outputs += [text[position:start], span, "\n" * missing]
        position = end + len(closing)
    return "".join([*outputs, text[position:]])


def one_line(text):
    """The text with a space for each line break and the spaces around it."""
    return " ".join(line.strip() for line in regex.split(r"[\r\n]", text.strip()))


def drop_markup(text):
    """The text without what stands between < and >, as the 2017 code removes it.

    That is `re.sub("<[^>]+>", "", text)`, in linear time also where no > follows.

    >>> drop_markup("a <b>c</b> <> d < e")
    'a c <> d < e'
    """
    outputs, position = [], 0
    while (start := text.find("<", position)) >= 0:
        end = text.find(">", start + 1)
        if end < 0:
            break
        if end == start + 1:  # nothing between them
            outputs.append(text[position : end + 1])
        else:
            outputs.append(text[position:start])
        position = end + 1
    return "".join([*outputs, text[position:]])


def empty_text_error(path, num_sentences, num_tags):
    """The InputError of a file in which there is no text.

    Args:
      num_sentences: number of its lines that do not open with <.
      num_tags: number of those that do.
    """
    if num_sentences:
        return InputError(f"{path}: every line is empty. Put one sentence on each line")
    if num_tags:
        return InputError(
            f"{path}: every line opens with <, which marks a tag. Put a space before a sentence"
            " that begins so"
        )
    return InputError(f"{path}: the file is empty. Put one sentence on each line")


def check_same_length(paths, counts, tags):
    """Check that both sides have equally many sentences, which belong together.

    Args:
      paths: the two files.
      counts: the number of sentences in each.
      tags: for each the numbers of the lines that are left out, since they open with <.

    Raises:
      InputError: they have not.
    """
    odd = min(set(tags[0]) ^ set(tags[1]), default=None)
    where = f"line {odd} opens with < in one of them alone, as no sentence may"
    if counts[0] != counts[1]:
        raise InputError(
            f"{paths[0]} holds {counts[0]} sentences and {paths[1]} {counts[1]} (lines"
            " that open with < not counted). Line n of one must be the translation of line n of"
            f" the other{f': {where}' if odd else ''}"
        )
    # In IWSLT's files one side may have more tags. Equally many on other lines are no tags.
    if odd and len(tags[0]) == len(tags[1]):
        raise InputError(
            f"{paths[0]} and {paths[1]}: {where}. Put a space before it, or take the pair out"
        )


def read_segments(path, text):
    """What is between `<seg>` and `</seg>`, however many of them are on a line.

    Returns:
      (list, list): the segments, on one line each and without the tags within them; and
      their line numbers and ids, None where they have none.

    Raises:
      InputError: a segment that is not opened or not closed (names the line).
    """
    segments, places, number, opened = [], [], 1, None
    behind = 0  # where the text begins that is not seen yet
    for tag in regex.finditer(r"<(/?)seg\b([^<>]*)>", text, regex.IGNORECASE):
        number += text.count("\n", behind, tag.start())
        behind = tag.start()
        if tag[1] and opened is None:
            raise InputError(f"{path}:{number}: </seg> without a <seg> before it: take it out")
        if not tag[1] and opened is not None:
            raise not_closed(path, places[-1])
        if tag[1]:
            segments.append(one_line(drop_markup(text[opened : tag.start()])))
            opened = None
        else:
            name = regex.search(r"""\bid\s*=\s*["']?([^"'\s]+)""", tag[2])
            places.append((number, name and name[1]))
            opened = tag.end()
    if opened is not None:
        raise not_closed(path, places[-1])
    return segments, places


def not_closed(path, place):
    """The InputError of a segment that has no end."""
    return InputError(f"{path}:{place[0]}: this <seg> is not closed: write </seg> behind its text")


# Both vocabularies -------------------------------------------------------------


def load_vocabs(hp, trained_with=None):
    """The vocabularies of source and target, which are one where tokens are pieces.

    A trained model has a copy of its vocabularies in `logdir`, so that it needs nothing
    from `preprocessed`, where prepro.py may have written others since.

    Args:
      trained_with: the `fingerprints` of a model's vocabularies, if there is a model.

    Returns:
      (Words, Words), or (Pieces, Pieces).

    Raises:
      InputError: a file is missing or malformed, or not the one the model was trained with.
    """
    names = ["bpe.model"]
    if hp.tokens == "words":
        names = [hp.vocab_path(lang).name for lang in (hp.source_lang, hp.target_lang)]
    vocabs = []
    for name in names:
        path = Path(hp.logdir) / name
        if not (trained_with and path.exists()):
            path = Path(hp.preprocessed) / name
        if trained_with and not path.exists():
            raise InputError(
                f"{path}: no such file, nor a copy in {hp.logdir}. The model there needs the"
                " vocabulary that it was trained with: copy the file to one of the two folders"
            )
        vocab = Pieces(path) if hp.tokens == "pieces" else Words(path, hp.min_cnt)
        if trained_with:
            check_same_vocab(vocab, trained_with, hp.logdir)
        vocabs.append(vocab)
    if hp.tokens == "pieces":
        if hp.vocab_size not in (AUTO, len(vocabs[0])):
            raise InputError(
                f"{vocabs[0].path}: holds {len(vocabs[0])} pieces, not {hp.vocab_size}. Leave"
                " --vocab_size out, or write the file again with `python prepro.py`"
            )
        vocabs *= 2
    return tuple(vocabs)


def check_same_vocab(vocab, trained_with, logdir):
    """Check that a vocabulary is the one that a model was trained with.

    Args:
      trained_with: the model's `fingerprints`.

    Raises:
      InputError: it is not.
    """
    if trained_with.get(name_of(vocab)) != fingerprints([vocab])[name_of(vocab)]:
        remedy = "Restore the file, or name its folder with --preprocessed"
        if vocab.path.parent == Path(logdir):
            remedy = "Restore the file, or delete it where --preprocessed names a folder with it"
        raise InputError(
            f"{vocab.path}: not the vocabulary that the model in {logdir} was trained with."
            f" {remedy}"
        )


def save_vocabs(vocabs, logdir):
    """Copy the vocabularies into `logdir`, where `load_vocabs` finds them first."""
    for vocab in vocabs:
        copy = Path(logdir) / vocab.path.name
        content = vocab.path.read_bytes()
        if not (copy.is_file() and copy.read_bytes() == content):
            write_whole(copy, content)


def fingerprints(vocabs):
    """SHA-256 of each vocabulary, a dict by its `name_of`."""
    return {name_of(vocab): hashlib.sha256(vocab.content()).hexdigest() for vocab in vocabs}


def name_of(vocab):
    """The name of a vocabulary: the language of words, or bpe."""
    return vocab.path.name.removesuffix(".vocab.tsv").removesuffix(".model")


# Words -------------------------------------------------------------------------


def read_counts(path):
    """The words of a vocabulary file and how often each was seen, a dict in its order.

    Raises:
      InputError: no such file, or not one that prepro.py writes (names the line).
    """
    counts, last = {}, None
    for number, line in enumerate(read_lines(path, RUN_PREPRO_HINT), 1):
        word, tab, count = line.partition("\t")
        if not word or not tab or word.split() != [word] or not count.isascii():
            problem = "is not a word, a tab and a count"
        elif not count.isdigit() or len(count) > MAX_COUNT_DIGITS:
            problem = f"has {count!r} for a count"
        elif word in counts:
            problem = f"names {word} a second time"
        elif counts and int(count) > last:
            problem = "is counted higher than the line before it"
        else:
            counts[word] = last = int(count)
            continue
        raise bad_vocab(path, number, f"this line {problem}")
    if tuple(counts)[:4] != SPECIALS:
        raise bad_vocab(path, 1, f"the first four words are not {' '.join(SPECIALS)}")
    return counts


def bad_vocab(path, number, problem):
    """The InputError of a line of a vocabulary file."""
    return InputError(f"{path}:{number}: {problem}: write the file anew with `python prepro.py`")


class Words:
    """The words of one language, as documented.

    Args:
      path: the vocabulary file.
      min_cnt: words seen less often are left out.

    Raises:
      InputError: see `load_vocab`.
    """

    def __init__(self, path, min_cnt):
        self.path = path
        self.word2idx, self.idx2word = load_vocab(path, min_cnt)

    def __len__(self):
        return len(self.word2idx)

    def content(self):
        """What makes it this vocabulary, bytes."""
        return "\n".join(self.word2idx).encode()

    def encode(self, sentences):
        """The ids of each cleaned sentence's words, and of `</S>`, a list of lists."""
        return [encode(sentence, self.word2idx) for sentence in sentences]

    def token(self, i):
        """The word with id `i`, a str."""
        return self.idx2word[int(i)]

    def decode(self, ids):
        """The words up to `</S>`, with blanks between them, a str."""
        return " ".join(map(self.token, before_end(ids)))


def before_end(ids):
    """Ids (T,) up to the first `</S>`, which stays out.

    >>> before_end(np.array([4, 5, 3, 0])).tolist()
    [4, 5]
    """
    (ends,) = np.nonzero(np.asarray(ids) == END)
    return ids[: ends[0]] if len(ends) else ids


def load_vocab(path, min_cnt):
    """Words seen at least `min_cnt` times, numbered in the order of the file.

    Returns:
      (dict, dict): word to id, and id to word.

    Raises:
      InputError: see `read_counts`; or no word was seen so often.
    """
    words = [word for word, count in read_counts(path).items() if count >= min_cnt]
    if len(words) == len(SPECIALS):
        raise InputError(f"{path}: no word was seen {min_cnt} times: lower --min_cnt")
    return {word: i for i, word in enumerate(words)}, dict(enumerate(words))


def find_min_cnt(paths, sizes, wanted=None):
    """The largest `min_cnt` that gives two vocabulary files these sizes.

    Args:
      wanted: the only one to try, where a flag says it.

    Raises:
      InputError: none does, so these are not the vocabularies that were used.
    """
    sides = [np.array(list(read_counts(path).values())) for path in paths]
    tried = np.unique(np.concatenate(sides))[::-1] if wanted is None else [wanted]
    for min_cnt in tried:
        if [(side >= min_cnt).sum() for side in sides] == list(sizes):
            return int(min_cnt)
    raise InputError(
        f"{paths[0]} and {paths[1]} are not the vocabularies of this model: it knows {sizes[0]}"
        f" and {sizes[1]} words, and {'no --min_cnt' if wanted is None else f'--min_cnt {wanted}'}"
        f" leaves that many of the {len(sides[0])} and {len(sides[1])} here: put the model's own"
        " files there, or name their folder with --preprocessed"
    )


def encode(sentence, word2idx):
    """The ids of a cleaned sentence's words, and of `</S>`.

    >>> encode("ein Hund", {"<PAD>": 0, "<UNK>": 1, "<S>": 2, "</S>": 3, "ein": 4})
    [4, 1, 3]
    """
    return [word2idx.get(word, UNK) for word in sentence.split()] + [END]


# Pieces ------------------------------------------------------------------------


class Pieces:
    """The pieces of words that both languages share, of a sentencepiece model.

    Args:
      path: the model's file.

    Raises:
      InputError: no such file, or not a model that prepro.py writes.
    """

    def __init__(self, path):
        self.path = path
        try:
            self.proto = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror.lower()}. {RUN_PREPRO_HINT}") from None
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=self.proto)
            specials = [self.processor.id_to_piece(i) for i in range(len(SPECIALS))]
        except (RuntimeError, IndexError):
            specials = None
        if specials != list(SPECIALS):
            raise InputError(
                f"{path}: not a sentencepiece model that begins with {' '.join(SPECIALS)}:"
                " write it anew with `python prepro.py`"
            )

    def __len__(self):
        return self.processor.get_piece_size()

    def content(self):
        """What makes it this vocabulary, bytes: the pieces, their scores and kinds.

        The file also holds how it was trained, which changes between versions of sentencepiece.
        """
        ids, get = list(range(len(self))), self.processor
        columns = [get.id_to_piece(ids), get.get_score(ids), get.is_control(ids)]
        columns += [get.is_unknown(ids), get.is_unused(ids), get.is_byte(ids)]
        return "\n".join(map(str, zip(*columns, strict=True))).encode()

    def encode(self, sentences, dropout=0.0, seed=0):
        """The ids of each sentence's pieces, and of `</S>`, a list of lists.

        Args:
          dropout: share of merges left out at random (Provilkov et al. 2020).
          seed: what that depends on, besides the sentences.
        """
        encode = functools.partial(self.processor.encode, list(sentences), add_eos=True)
        if not dropout:
            return encode(num_threads=os.cpu_count())
        # sentencepiece draws from a generator that each thread seeds once, when it first
        # draws. In a new thread the sentences alone decide what follows.
        sentencepiece.set_random_generator_seed(seed)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            sampling = dict(enable_sampling=True, alpha=dropout, nbest_size=-1, num_threads=1)
            return thread.submit(encode, **sampling).result()

    def token(self, i):
        """The piece with id `i`, a str; ▁ stands for a blank before it."""
        return self.processor.id_to_piece(int(i))

    def decode(self, ids):
        """The text of the pieces up to `</S>`, a str."""
        return self.processor.decode([int(i) for i in before_end(ids)])
