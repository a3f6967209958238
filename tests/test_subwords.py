"""Subwords: the sentencepiece model, BPE-dropout, and the recipe tiny from text to text."""

import dataclasses
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from threading import get_ident

import numpy as np
import pytest
import tensorflow as tf

import checkpoint
import inference
import prepro
import train
from conftest import sample_pairs, seeds, slow, write_corpus
from data_load import get_batch_data, load_test_data, load_train_data, pairs_of_epoch
from helpers import (
    STEP_TAGS,
    dev_scores,
    load,
    read_test_sentences,
    run_main,
    saved_paths,
    saved_rows,
    scalars,
    tensorflow_text,
    vocabs_of,
)
from hparams import load_hparams, make_hparams
from ids import EOS, PAD, SPECIALS, UNK, RaggedIds
from inference import SearchDecoder, make_search
from interop.saved_model import SubwordOps
from paragraphs import Splitter
from processes import ROOT, forked_script
from runtime.errors import InputError
from search import paper_penalty
from text import read_sentences
from variable_names import variables_by_2017_name
from vocab import SubwordVocab, load_vocabs

TINY = dict(recipe="tiny", vocab_size=180, hidden_units=16, ffn_units=32, num_blocks=1, num_heads=2)
TINY |= dict(fold_case=False)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """The flags of a corpus of 200 pairs with its subwords, and of a small model."""
    folder = tmp_path_factory.mktemp("subwords")
    flags = write_corpus(folder, sample_pairs(200), sample_pairs(30, seed=1))
    run_main(prepro, flags | TINY)
    return flags | TINY


@pytest.fixture(scope="module")
def vocab(flags):
    """The `SubwordVocab` of these flags."""
    return vocabs_of(flags)[0]


# The sentencepiece model ------------------------------------------------------------


def test_the_first_subwords_are_the_specials_and_both_sides_share_a_model(flags, vocab):
    assert [vocab.processor.id_to_piece(i) for i in range(4)] == list(SPECIALS)
    assert len(vocab) == 180
    source, target = vocabs_of(flags)
    assert source is target


def test_encoded_text_is_decoded(flags, vocab):
    lines = [
        line for side in ("source", "target") for line in read_sentences(flags[f"{side}_train"])
    ]
    encoded = vocab.encode(lines)
    assert all(ids[-1] == EOS and UNK not in ids for ids in encoded)
    assert [vocab.decode(ids) for ids in encoded] == lines
    assert vocab.decode([*encoded[0], 7, 8]) == lines[0]  # ids after </S> are ignored
    assert vocab.decode([EOS, 5]) == ""


@pytest.mark.parametrize(
    "line",
    [
        "我爱你，“你”爱我吗？ＡＢ½…",
        "أحبك كثيرا",
        "Ζωή, 12.5 % — “naïve”!",
        "नमस्ते दुनिया",
        "안녕 세상 🙂",
    ],
)
def test_any_script_is_text(tmp_path, line):
    flags = write_corpus(tmp_path, [(line, line[::-1])] * 3) | dict(recipe="tiny")
    largest = size_named(flags, vocab_size=8000)
    run_main(prepro, flags | dict(vocab_size=largest))  # the size that the message names
    vocab = SubwordVocab(Path(flags["preprocessed"]) / "bpe.model")
    assert len(vocab) == largest
    ids = vocab.encode([line])[0]
    assert UNK not in ids and vocab.decode(ids) == line


def test_the_sentencepiece_model_alone_composes_and_makes_plain_spaces(vocab):
    """For programs that use the file without `text.normalize`."""
    lines = [
        "Ein\u00a0Hund\tim\u2028Park ",
        unicodedata.normalize("NFD", "für die schöne"),
        "\xads",
    ]
    texts = [vocab.decode(vocab.encode([line])[0]) for line in lines]
    assert texts == ["Ein Hund im Park", "für die schöne", "s"]


def size_named(flags, **more):
    """Return the vocabulary size that the message of prepro.py recommends."""
    with pytest.raises(InputError) as raised:
        run_main(prepro, flags | more)
    return int(re.search(r"--vocab_size (\d+), the nearest", str(raised.value))[1])


def test_a_vocabulary_too_small_for_the_characters_names_the_smallest(flags, tmp_path, capsys):
    more = dict(preprocessed=str(tmp_path))
    smallest = size_named(flags, **more, vocab_size=10)
    run_main(prepro, flags | more | dict(vocab_size=smallest))
    assert "nearly all subwords are characters" in capsys.readouterr().err
    assert len(SubwordVocab(tmp_path / "bpe.model")) == smallest
    assert size_named(flags, **more, vocab_size=smallest - 1) == smallest
    largest = size_named(flags, **more, vocab_size=10_000)
    run_main(prepro, flags | more | dict(vocab_size=largest))


@slow
@pytest.mark.parametrize(
    "corpus, names", [("multi30k", "train.{}"), ("iwslt16", "train.tags.de-en.{}")]
)
def test_both_implementations_of_sentencepiece_agree(real_text, tmp_path, corpus, names):
    """The package from PyPI, which this project uses, and tensorflow-text for TensorFlow graphs."""
    paths = [str(real_text / corpus / names.format(lang)) for lang in ("de", "en")]
    files = dict(source_train=paths[0], target_train=paths[1], preprocessed=str(tmp_path))
    run_main(prepro, dict(recipe="tiny") | files)
    vocab = SubwordVocab(tmp_path / "bpe.model")
    tokenizer = tensorflow_text().SentencepieceTokenizer(vocab.content, add_eos=True)
    for path in paths:
        lines = list(read_sentences(path))
        ours = RaggedIds.from_lists(vocab.encode(lines))
        theirs = tokenizer.tokenize(lines)
        np.testing.assert_array_equal(ours.splits, theirs.row_splits)
        np.testing.assert_array_equal(ours.ids, theirs.flat_values)
        back = tokenizer.detokenize(theirs[:1000, :-1])
        texts = [vocab.decode(ours[row]) for row in range(len(back))]
        assert texts == [text.decode() for text in back.numpy()]


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"ein\t3\n"])
def test_a_file_that_is_no_sentencepiece_model_is_named(tmp_path, content):
    path = tmp_path / "bpe.model"
    path.write_bytes(content)
    with pytest.raises(InputError, match="bpe.model: not a sentencepiece model"):
        SubwordVocab(path)


def test_a_vocabulary_of_another_size_is_refused(flags, vocab, tmp_path):
    with pytest.raises(InputError, match="its 180 subwords do not fit vocab_size 90. Write"):
        vocabs_of(flags | dict(vocab_size=90))
    with pytest.raises(InputError, match="prepro.py"):
        vocabs_of(flags | dict(preprocessed=str(tmp_path / "nowhere")))


def test_the_same_text_gives_the_same_file(flags, tmp_path):
    """Also in another process."""
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders[:2]:
        run_main(prepro, flags | dict(preprocessed=str(folder)))
    done = forked_script("prepro.py", **flags | dict(preprocessed=folders[2]))
    assert done.returncode == 0, done.stderr
    one, *others = ((folder / "bpe.model").read_bytes() for folder in folders)
    assert others == [one, one]


@slow
def test_without_a_flag_training_takes_the_size_from_the_file(flags, tmp_path, capsys):
    """Even if the recipe has another vocab_size."""
    del (free := dict(flags))["vocab_size"]
    more = dict(recipe="paper", logdir=str(tmp_path), num_epochs=1, batch_size=200)
    run_main(train, free | more)
    assert len(load_vocabs(tmp_path, load_hparams(more))[0]) == 180


# Sources without case -----------------------------------------------------------------


@pytest.mark.parametrize("joint_vocab", [True, False])
def test_a_source_has_no_case_and_a_target_keeps_it(flags, tmp_path, joint_vocab):
    more = dict(fold_case=True, joint_vocab=joint_vocab, preprocessed=str(tmp_path), vocab_size=300)
    hp = make_hparams(flags | more | dict(tied_embeddings=joint_vocab))
    run_main(prepro, flags | more | dict(tied_embeddings=joint_vocab))
    source, target = load_vocabs(hp.preprocessed, hp)
    for german, english in sample_pairs(20):
        forms = [german, german.upper(), german.title(), german.lower()]
        assert len({tuple(ids) for ids in source.encode(forms)}) == 1
        assert target.decode(target.encode([english])[0]) == english
        assert target.encode([english]) != target.encode([english.upper()])
    assert (source.tokens() == target.tokens()) == joint_vocab
    assert source.folds_case and not target.folds_case


@pytest.mark.parametrize(
    "lang, forms",
    [
        ("de", ["Straße", "STRASSE", "strasse"]),
        ("tr", ["ışık İki", "IŞIK İKİ", "Işık iki"]),
        ("en", ["I\u0308s", "i\u0308S", "ÏS"]),
        ("el", ["σοφός", "ΣΟΦΌΣ"]),
        ("ru", ["Ёж", "ЁЖ", "ёж"]),
        ("ja", ["ＡＢ犬", "ａｂ犬"]),
    ],
)
def test_case_follows_the_rules_of_the_language(tmp_path, lang, forms):
    flags = write_corpus(tmp_path, [(" ".join([form, *form]), "x") for form in forms])
    flags |= dict(recipe="tiny", vocab_size=0, source_lang=lang, fold_case=True)
    hp = make_hparams(flags)
    run_main(prepro, flags)
    source, _ = load_vocabs(hp.preprocessed, hp)
    ids = source.encode(forms)
    assert len({tuple(own) for own in ids}) == 1 and UNK not in ids[0]


def test_a_vocabulary_with_another_case_is_refused(flags, tmp_path):
    more = dict(
        joint_vocab=False, tied_embeddings=False, preprocessed=str(tmp_path), vocab_size=300
    )
    for written, wanted in ((False, True), (True, False)):
        run_main(prepro, flags | more | dict(fold_case=written))
        with pytest.raises(InputError, match=f"do not fit fold_case {wanted}"):
            vocabs_of(flags | more | dict(fold_case=wanted))


# BPE-dropout --------------------------------------------------------------------------


def test_seed_and_epoch_decide_bpe_dropout(flags, vocab, capsys):
    hp = make_hparams(flags | dict(bpe_dropout=0.1))
    vocabs = vocab, vocab
    data = load_train_data(hp, vocabs)

    def ids(seed, epoch, dropout=0.1):
        changed = dataclasses.replace(hp, seed=seed, bpe_dropout=dropout)
        dropped = pairs_of_epoch(data, vocabs, changed, epoch)
        assert [vocab.decode(x) for x in dropped.X] == [*data.Sources]
        assert [vocab.decode(y) for y in dropped.Y] == [*data.Targets]
        return np.concatenate([dropped.X.ids, dropped.Y.ids]).tolist()

    first = ids(0, 1)
    assert first == ids(0, 1)
    others = ids(0, 2), ids(1, 1), np.concatenate([data.X.ids, data.Y.ids]).tolist()
    assert first not in others
    # More dropout gives more subwords.
    assert len(others[2]) < len(first) < len(ids(0, 1, dropout=0.5))


def test_bpe_dropout_is_the_same_in_every_process(vocab):
    """A resumed run must read the subwords of the run that was stopped."""
    program = (
        "import sys; from pathlib import Path; from vocab import SubwordVocab;"
        "print(SubwordVocab(Path(sys.argv[1])).encode(sys.argv[2:], dropout=0.5, seed=7))"
    )
    lines = [german for german, _ in sample_pairs(20)]
    command = [sys.executable, "-c", program, str(vocab.path), *lines]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"{vocab.encode(lines, dropout=0.5, seed=7)}\n", done.stderr


def test_bpe_dropout_applies_only_to_training(flags, vocab, capsys):
    plain, dropping = (make_hparams(flags | dict(bpe_dropout=p)) for p in (0.0, 0.5))
    vocabs = vocab, vocab
    ids = [load_test_data(hp, vocabs).data.X.ids for hp in (plain, dropping)]
    np.testing.assert_array_equal(*ids)
    data = load_train_data(dropping, vocabs)
    (undropped, _), (first, _), (second, _) = (
        get_batch_data(pairs_of_epoch(data, vocabs, hp, epoch), hp, epoch)
        for hp, epoch in ((plain, 1), (dropping, 1), (dropping, 2))
    )
    tokens = [
        sum(int(tf.math.count_nonzero(y)) for _, y in batches)
        for batches in (undropped, first, second)
    ]
    assert tokens[1] > 1.2 * tokens[0] and tokens[2] != tokens[1]


@pytest.mark.parametrize("more", [dict(), dict(recipe="tiny", positions="learned")])
def test_bpe_dropout_is_refused_without_subwords_or_where_positions_end(more):
    with pytest.raises(InputError, match="bpe_dropout needs (--tokenizer bpe|positions without)"):
        make_hparams(dict(bpe_dropout=0.1) | more)


# The recipe tiny, from text to text ---------------------------------------------------


@pytest.fixture(scope="module")
def run(flags):
    """Flags and output of three epochs of training, with the test set as development set."""
    more = dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    more |= dict(num_epochs=3, warmup_steps=1000, batch_tokens=400, bpe_dropout=0.1)
    done = forked_script("train.py", **flags, **more)
    assert done.returncode == 0, done.stderr
    return flags | more, done.stdout


def test_each_epoch_prints_the_dev_bleu_and_the_best_one_is_stored(run):
    flags, printed = run
    printed_bleu = [
        float(bleu) for bleu in re.findall(r", dev loss [\d.]+ BLEU ([\d.]+) chrF", printed)
    ]
    points = scalars(flags["logdir"])
    assert set(points) == STEP_TAGS | {"dev_loss", "dev_bleu", "dev_chrf"}
    assert [round(bleu, 2) for bleu in points["dev_bleu"].values()] == printed_bleu
    steps = [row.step for row in saved_rows(flags["logdir"])]
    assert list(points["dev_bleu"]) == steps and len(printed_bleu) == 3
    names = [row.name for row in saved_rows(flags["logdir"])]
    scores = dev_scores(flags["logdir"])
    assert {name: round(bleu, 2) for name, bleu in scores.items()} == dict(
        zip(names, printed_bleu, strict=True)
    )
    assert (
        checkpoint.best_row(saved_rows(flags["logdir"])).name
        == names[printed_bleu.index(max(printed_bleu))]
    )


def test_the_learning_rate_is_in_tensorboard(run):
    hp = make_hparams(run[0])
    points = scalars(run[0]["logdir"])["lr"]
    for step, rate in points.items():
        assert rate == pytest.approx(hp.lr * step / hp.warmup_steps, rel=1e-5)


def test_the_dev_bleu_is_what_eval_gives_the_best_checkpoint(run):
    """The test set is the development set here."""
    own = {name: run[0][name] for name in ("logdir", "results")}
    done = forked_script("eval.py", **own, best=True, beam=1)
    best = checkpoint.best_row(saved_rows(run[0]["logdir"]))
    bleu = dev_scores(run[0]["logdir"])[best.name]
    assert f"Decoding = greedy search, {best.name}\n" in done.stdout
    assert f"sacreBLEU = {bleu:.2f} " in done.stdout


@slow
@pytest.mark.parametrize(
    "decoding", [dict(), dict(beam=1, average_checkpoints=10), dict(best=True, beam=3)]
)
def test_eval_writes_plain_text_for_each_line(run, decoding):
    flags, _ = run
    done = forked_script("eval.py", logdir=flags["logdir"], results=flags["results"], **decoding)
    assert done.returncode == 0, done.stderr
    if not decoding:  # as in the recipe
        assert "beam 5, length penalty 1.2" in done.stdout
    name = re.search(r"Full results: (.+)", done.stdout)[1]
    *records, summary = Path(name).read_text("utf-8").split("\n\n")
    sources, references = (
        read_test_sentences(flags[f"{side}_test"]) for side in ("source", "target")
    )
    assert len(records) == len(sources) == 30
    for record, source, reference in zip(records, sources, references, strict=True):
        lines = record.split("\n")
        assert lines[:2] == [f"- source: {source}", f"- expected: {reference}"]
        assert lines[2].startswith("- got: ") and "▁" not in lines[2]
    assert "Left out = 0 of 30" in summary


@slow
def test_a_sentence_longer_than_any_in_training_is_translated(run, tmp_path):
    flags, _ = run
    long = " ".join(read_test_sentences(flags["source_test"]))
    tests = write_corpus(tmp_path, [(long, "x"), ("kurz", "y")])
    names = {name: tests[name] for name in ("source_test", "target_test", "results")}
    done = forked_script("eval.py", logdir=flags["logdir"], **names)
    assert done.returncode == 0, done.stderr
    assert "Left out = 0 of 2" in done.stdout
    _, hp, model, vocabs = load(dict(logdir=flags["logdir"]))
    X = load_test_data(dataclasses.replace(hp, **names), vocabs).data.X
    assert X.lengths[0] > 3 * hp.maxlen


@slow
def test_a_translation_has_at_most_twice_the_tokens_of_its_source_and_ten(run):
    """By a model that never predicts </S>. Small batches bound the memory."""
    loaded = load(dict(logdir=run[0]["logdir"]))
    _, _, model, vocabs = loaded
    table = model.enc_input.tokens.lookup_table
    table.assign(np.where(np.arange(len(vocabs[0]))[:, None] == EOS, 0, table + 1.0))
    X = RaggedIds.from_lists([[9] * length for length in (3, 200, 5)])
    for beam in (1, 2):
        found = SearchDecoder(loaded.with_hp(beam=beam))(X)
        assert [len(best.ids) for best, *_ in found] == [16, 410, 20]


@slow
@pytest.mark.parametrize("threads", [1, 3])
def test_the_order_is_kept_and_a_translation_does_not_depend_on_its_batch(
    run, monkeypatch, threads
):
    loaded = load(dict(logdir=run[0]["logdir"]))
    hp = loaded.hp
    X = load_test_data(hp, loaded.vocabs).data.X
    monkeypatch.setattr(inference, "MAX_BATCH_HYPOTHESES", 35)
    monkeypatch.setattr(inference, "num_cores", lambda: threads)
    assert len(X) > inference.decoding_batch_size(X.lengths.max(), hp.beam) == 7
    for beam in (1, 4):
        decode = SearchDecoder(loaded.with_hp(beam=beam))
        used = set()  # threads

        def search(x, search=decode.search, used=used):
            used.add(get_ident())
            return search(x)

        decode.search = search
        together = [best.text for best, *_ in decode(X)]
        assert len(used) <= threads and (get_ident() in used) == (threads == 1)
        each = (decode(RaggedIds.from_lists([x.tolist()])) for x in X)
        alone = [best.text for [(best, *_)] in each]
        assert together == alone and len(set(together)) > 2


def test_the_score_of_a_translation_equals_that_of_the_search(run):
    _, hp, model, vocabs = load(dict(logdir=run[0]["logdir"]))
    x = load_test_data(hp, vocabs).data.X.pad()  # (N, T)
    preds, scores = make_search(model, hp, 4)(x)
    settings = 2 * np.count_nonzero(x, axis=1) + 10, paper_penalty(hp.alpha), [PAD, UNK]
    rescored = inference.sequence_scores(model, x, preds[:, 0], *settings)
    np.testing.assert_allclose(rescored, scores[:, 0], rtol=1e-4)
    preds, scores = make_search(model, hp, 1, scored=True)(x)
    rescored = inference.sequence_scores(model, x, preds[:, 0], *settings)
    np.testing.assert_allclose(rescored, scores[:, 0], rtol=1e-5)


def test_average_checkpoints_is_the_mean_of_the_last_ones(run, monkeypatch):
    monkeypatch.setattr(checkpoint, "RECENT_SHARE", 1.0)
    logdir = run[0]["logdir"]
    each = [checkpoint.weights_of(checkpoint.load(path)) for path in saved_paths(logdir)[-2:]]
    _, _, model, _ = load(dict(logdir=logdir, average_checkpoints=2))
    for name, variable in variables_by_2017_name(model).items():
        two = [weights[name] for weights in each]
        np.testing.assert_allclose(variable, np.mean(two, axis=0), atol=1e-6)
        assert np.any(two[0] != two[1])


@slow
def test_training_stops_when_the_dev_bleu_does_not_improve(flags, tmp_path, capsys):
    """With a learning rate of almost 0 the first epoch remains the best."""
    still = flags | dict(
        logdir=str(tmp_path),
        source_dev=flags["source_test"],
        target_dev=flags["target_test"],
        lr=1e-30,
        num_epochs=9,
        patience=2,
        keep_checkpoints=1,
    )
    run_main(train, still)
    assert "No better dev score in" in capsys.readouterr().out
    names = [path.name[:14] for path in saved_paths(tmp_path)]
    assert names == ["model_epoch_01", "model_epoch_03"]  # the best, and the last one
    assert checkpoint.best_row(saved_rows(tmp_path)).name.startswith(names[0])

    run_main(train, still)
    assert "this training is done" in capsys.readouterr().out
    assert [path.name[:14] for path in saved_paths(tmp_path)] == names


def test_the_development_set_is_identified_by_its_text_and_not_by_its_path(run, tmp_path):
    shutil.copytree(run[0]["logdir"], tmp_path, dirs_exist_ok=True)
    rows = checkpoint.read_rows(tmp_path)
    hp = load_hparams({"logdir": str(tmp_path)})
    vocabs = load_vocabs(tmp_path, hp)
    data = load_train_data(dataclasses.replace(hp, preprocessed=str(tmp_path)), vocabs)
    link = tmp_path / "link"
    link.symlink_to(hp.source_dev)
    for path, is_same in ((str(link), True), (hp.target_dev, False)):
        dev = load_test_data(dataclasses.replace(hp, source_dev=path), vocabs, "dev")
        training = train.Training(hp, vocabs, data, dev)
        assert (training.digests[1] == rows[-1].dev) == is_same


@slow
@seeds
def test_it_learns_to_copy_text_with_digits_and_punctuation(seed, tmp_path, record_property):
    """Train the recipe tiny until it copies sentences.

    Each word becomes one subword, so all are learned. With T5 positions, the cross-attention
    knows no positions, and copies words in no order less well. docs/development.md has the margin.
    """
    rng = np.random.default_rng(0)
    words = "Ab, c3 d! Ef 42 g? (hi)".split()
    lines = [" ".join(rng.choice(words, size=5)) for _ in range(600)]
    flags = write_corpus(tmp_path, list(zip(lines[:550], lines[:550], strict=True)))
    more = dict(recipe="tiny", hidden_units=64, num_blocks=1, num_heads=4, seed=seed)
    more |= dict(positions="paired_sinusoid", dropout_rate=0.0, batch_tokens=150)
    more |= dict(lr=0.005, warmup_steps=100, num_epochs=24)
    run_main(prepro, flags | more)
    run_main(train, flags | more)
    loaded = load(dict(logdir=flags["logdir"]))
    X = RaggedIds.from_lists(loaded.vocabs[0].encode(lines[550:]))
    for beam in (1, 4):
        got = [best.text for best, *_ in SearchDecoder(loaded.with_hp(beam=beam))(X)]
        share = float(np.mean([a == b for a, b in zip(got, lines[550:], strict=True)]))
        record_property(f"share copied, beam {beam}", share)
        assert share > 0.9


def test_beam_scores_are_the_log_probabilities_of_the_model(run):
    """Without a length penalty the score of a hypothesis is its log-probability."""
    loaded = load(dict(logdir=run[0]["logdir"], alpha=0.0, beam=4))
    _, hp, model, vocabs = loaded
    X = RaggedIds.from_lists([*load_test_data(hp, vocabs).data.X][:3])
    limits = hp.max_output_tokens(X.lengths)
    for x, limit, hypotheses in zip(X, limits, SearchDecoder(loaded, nbest=4)(X), strict=True):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for _, ids, score, _ in hypotheses:
            ids = np.array([[*ids, EOS][:limit]])  # (1, T)
            logits = model(x[None], ids).numpy()
            logits[:, :, [PAD, UNK]] = -np.inf  # they are never chosen
            logp = tf.gather(tf.nn.log_softmax(logits), ids, batch_dims=2)
            assert float(tf.reduce_sum(logp)) == pytest.approx(float(score), abs=1e-3)


# Symbols and bytes -------------------------------------------------------------


@pytest.mark.parametrize("fold_case", [True, False])
def test_a_symbol_is_repeated_before_each_sentence(tmp_path, fold_case):
    flags = write_corpus(tmp_path, sample_pairs(300)) | dict(recipe="tiny", fold_case=fold_case)
    run_main(prepro, flags | dict(symbols=">>en<<,>>DE<<"))
    split = Splitter("de", vocabs_of(flags)[0], max_tokens=50)
    for symbol in (">>en<<", ">>DE<<"):
        inputs = split(f"{symbol} Der Hund schläft. Die Frau singt.").inputs
        assert inputs == [f"{symbol} Der Hund schläft.", f"{symbol} Die Frau singt."]
    assert split(">>xx<< Der Hund schläft. Die Frau singt.").inputs[1] == "Die Frau singt."


@pytest.mark.parametrize("vocab_size", [0, 400])
def test_symbols_are_one_subword_and_unseen_characters_are_bytes(tmp_path, vocab_size):
    flags = write_corpus(tmp_path, sample_pairs(300)) | dict(recipe="tiny", vocab_size=vocab_size)
    flags |= dict(fold_case=False)
    plain = dict(preprocessed=str(tmp_path / "plain"))
    run_main(prepro, flags | plain)
    run_main(prepro, flags | dict(symbols=">>de<<,@@1@@", byte_fallback=True))
    vocab, before = (vocabs_of(flags | more)[0] for more in ({}, plain))
    if not vocab_size:  # as many learned ones
        assert abs(len(vocab) - len(before) - 258) <= 2
    text = ">>de<< Der Hund @@1@@ schläft 日"
    (ids,), (known,) = vocab.encode([text]), before.encode([text])
    tokens = [vocab.id_to_token(i) for i in ids]
    assert ">>de<<" in tokens and "@@1@@" in tokens
    assert tokens[-4:-1] == [f"<0x{byte:02X}>" for byte in "日".encode()]
    assert UNK not in ids and UNK in known
    assert vocab.decode(ids) == text
    tokenizer = tensorflow_text().SentencepieceTokenizer(vocab.content, add_eos=True)  # of exports
    assert tokenizer.tokenize(text).numpy().tolist() == ids
    assert tokenizer.detokenize(ids[:-1]).numpy().decode() == text
    assert "@@1@@" not in [before.id_to_token(i) for i in known]
    # A translation is one line, also if the model chooses the byte of a line feed.
    ends = [vocab.processor.piece_to_id(f"<0x{byte:02X}>") for byte in b"\n\r"]
    assert vocab.decode([*ids[:-1], *ends, *ids]).split() == [*text.split(), *text.split()]
    for i in range(len(vocab)):
        assert not {"\n", "\r"} & {*vocab.decode([i])}
    rows = tf.ragged.constant([ids[:-1], ends], tf.int32)
    assert SubwordOps(vocab, vocab).decode(rows).numpy().tolist() == [text.encode(), b"  "]


@pytest.mark.parametrize("change", [dict(symbols=">>de<<,>>en<<"), dict(byte_fallback=True)])
def test_a_flag_that_prepro_did_not_have_is_refused(tmp_path, change):
    flags = write_corpus(tmp_path, sample_pairs(90)) | dict(recipe="tiny", vocab_size=400)
    run_main(prepro, flags | dict(symbols=">>de<<"))
    needle = "symbols" if "symbols" in change else "byte_fallback"
    with pytest.raises(InputError, match=f"bpe.source.model: .*{needle}.* and this flag"):
        vocabs_of(flags | change)
    vocabs_of(flags | dict(symbols=">>de<<"))
    vocabs_of(flags)


@pytest.mark.parametrize(
    "symbols, word",
    [
        *((">>de<<,", "''"), ("a b", "'a b'"), ("<S>,x", "'<S>'"), ("<0x41>", "'<0x41>'")),
        *(("x,y,x", "'x'"), ("e\u0301,é", "'é'"), ("a\u200bb", r"'a\\u200bb'")),
    ],
)
def test_symbols_that_cannot_be_are_refused(tmp_path, symbols, word):
    flags = write_corpus(tmp_path, sample_pairs(90)) | dict(recipe="tiny", symbols=symbols)
    with pytest.raises(InputError, match=f"{word} cannot be .*Write words with commas"):
        run_main(prepro, flags)
    assert not (tmp_path / "preprocessed").exists()


def test_symbols_may_begin_with_a_tag(tmp_path):
    """Such lines are sentences: "<de> Ein Hund", and a line that is only "<num>"."""
    pairs = [*sample_pairs(90), ("<num>", "<num>")]
    pairs = [(f"<de> {source}", target) for source, target in pairs]
    flags = write_corpus(tmp_path, pairs) | dict(
        recipe="tiny", vocab_size=0, symbols="<de>,<num>", byte_fallback=True
    )
    run_main(prepro, flags)
    hp = make_hparams(flags)
    vocab, _ = vocabs = load_vocabs(hp.preprocessed, hp)
    assert len(load_train_data(hp, vocabs).X) == len(pairs)
    ids = {*vocab.encode([pairs[-1][0]])[0]}
    assert {vocab.processor.piece_to_id(symbol) for symbol in ("<de>", "<num>")} <= ids


@pytest.mark.parametrize("change", [dict(symbols="x"), dict(byte_fallback=True)])
def test_words_have_neither(change):
    with pytest.raises(InputError, match=f"{[*change][0]} .*needs --tokenizer bpe"):
        make_hparams(change)


@pytest.mark.parametrize(
    "size, more", [(290, dict(byte_fallback=True)), (40, dict(character_coverage=0.98))]
)
def test_rare_characters_can_be_left_out(tmp_path, size, more):
    """Each of 300 characters occurs once, so they would need more subwords than there are."""
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    pairs = [(f"{char} {'好人' * 30}", "good people") for char in rare]
    flags = write_corpus(tmp_path, pairs) | dict(recipe="tiny", vocab_size=size)
    with pytest.raises(InputError, match=f"does not allow {size} subwords"):
        run_main(prepro, flags)
    run_main(prepro, flags | more)
    vocab = SubwordVocab(Path(flags["preprocessed"]) / "bpe.model")
    ids = vocab.encode(["一好人"])[0]
    assert (UNK in ids) == ("byte_fallback" not in more)
    assert "byte_fallback" not in more or vocab.decode(ids) == "一好人"


def test_a_reserved_character_leaves_out_no_other(tmp_path):
    """Sentencepiece skips a word with U+2585, and then its other characters."""
    flags = write_corpus(tmp_path, [("Balken ▃▅▇ voll", "bars full")] * 9) | dict(recipe="tiny")
    run_main(prepro, flags)
    ids = vocabs_of(flags)[0].encode(["▃▇"])[0]
    assert UNK not in ids
