"""Pieces: the sentencepiece model, BPE-dropout, and the recipe tiny from text to text."""

import dataclasses
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text

import checkpoint
import decoding
import events
import prepro
import train
from conftest import SEED, forked_script, sample_pairs, write_corpus
from data_load import Ragged, cut_anew, load_test_data, load_train_data
from decoding import load, make_search, to_text, translate
from hparams import InputError, load_hparams, with_recipe
from search import paper_penalty
from test_scripts import scalars
from text import END, PAD, SPECIALS, UNK, Pieces, fingerprints, load_vocabs, read_corpus, read_test

TINY = dict(recipe="tiny", vocab_size=180, hidden_units=16, ffn_units=32, num_blocks=1, num_heads=2)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Flags of a corpus of 200 pairs with its pieces, and of a small model."""
    flags = write_corpus(tmp_path_factory.mktemp("pieces"), sample_pairs(200), sample_pairs(30, 1))
    prepro.main(flags | TINY)
    return flags | TINY


@pytest.fixture(scope="module")
def pieces(flags):
    return load_vocabs(with_recipe(flags))[0]


# The sentencepiece model ------------------------------------------------------------


def test_the_first_pieces_are_the_specials_and_one_model_serves_both_sides(flags, pieces):
    assert [pieces.processor.id_to_piece(i) for i in range(4)] == list(SPECIALS)
    assert len(pieces) == 180
    source, target = load_vocabs(with_recipe(flags))
    assert source is target


def test_what_is_encoded_is_decoded(flags, pieces):
    lines = [line for side in ("source", "target") for line in read_corpus(flags[f"{side}_train"])]
    encoded = pieces.encode(lines)
    assert all(ids[-1] == END and UNK not in ids for ids in encoded)
    assert [pieces.decode(ids) for ids in encoded] == lines
    assert pieces.decode([*encoded[0], 7, 8]) == lines[0]  # nothing behind the end
    assert pieces.decode([END, 5]) == ""


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
    # The message names a size that works.
    largest = size_named(flags, "less", vocab_size=8000)
    prepro.main(flags | dict(vocab_size=largest))
    vocab = Pieces(Path(flags["preprocessed"]) / "bpe.model")
    assert len(vocab) == largest
    ids = vocab.encode([line])[0]
    assert UNK not in ids and vocab.decode(ids) == line


def test_text_is_normalised_no_further_than_to_nfc_and_plain_blanks(pieces):
    lines = ["Ein\u00a0Hund\tim\u2028Park ", unicodedata.normalize("NFD", "für die schöne")]
    texts = [pieces.decode(pieces.encode([line])[0]) for line in lines]
    assert texts == ["Ein Hund im Park", "für die schöne"]


def size_named(flags, bound, **more):
    with pytest.raises(InputError) as raised:
        prepro.main(flags | more)
    return int(re.search(rf"--vocab_size (\d+) or {bound}", str(raised.value))[1])


def test_a_vocabulary_too_small_for_the_characters_names_the_smallest(flags, tmp_path):
    more = dict(preprocessed=str(tmp_path))
    smallest = size_named(flags, "more", **more, vocab_size=10)
    prepro.main(flags | more | dict(vocab_size=smallest))
    assert len(Pieces(tmp_path / "bpe.model")) == smallest
    assert size_named(flags, "more", **more, vocab_size=smallest - 1) == smallest


def test_both_implementations_of_sentencepiece_cut_alike(real_text, tmp_path):
    """PyPI's, which trains and cuts here, and tensorflow-text's, which can be in a graph."""
    for corpus, names in (("multi30k", "train.{}"), ("iwslt16", "train.tags.de-en.{}")):
        paths = [str(real_text / corpus / names.format(lang)) for lang in ("de", "en")]
        folder = str(tmp_path / corpus)
        files = dict(source_train=paths[0], target_train=paths[1], preprocessed=folder)
        prepro.main(dict(recipe="tiny") | files)
        vocab = Pieces(tmp_path / corpus / "bpe.model")
        tokenizer = tensorflow_text.SentencepieceTokenizer(vocab.proto, add_eos=True)
        for path in paths:
            lines = list(read_corpus(path))
            ours = Ragged.of(vocab.encode(lines))
            theirs = tokenizer.tokenize(lines)
            np.testing.assert_array_equal(ours.splits, theirs.row_splits)
            np.testing.assert_array_equal(ours.ids, theirs.flat_values)
            back = tokenizer.detokenize(theirs[:1000, :-1])
            texts = [vocab.decode(ours[row]) for row in range(len(back))]
            assert texts == [text.decode() for text in back.numpy()]


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"ein\t3\n"])
def test_a_file_that_is_not_such_a_model_is_named(tmp_path, content):
    path = tmp_path / "bpe.model"
    path.write_bytes(content)
    with pytest.raises(InputError, match="bpe.model: not a sentencepiece model"):
        Pieces(path)


def test_another_model_than_the_trained_one_is_refused(flags, pieces, tmp_path):
    own = fingerprints(load_vocabs(with_recipe(flags)))
    assert load_vocabs(with_recipe(flags), own)
    with pytest.raises(InputError, match="not the vocabulary that the model in"):
        load_vocabs(with_recipe(flags), {name: "0" * 64 for name in own})
    with pytest.raises(InputError, match="holds 180 pieces, not 90. Leave --vocab_size out"):
        load_vocabs(with_recipe(flags | dict(vocab_size=90)))
    with pytest.raises(InputError, match="prepro.py"):
        load_vocabs(with_recipe(flags | dict(preprocessed=str(tmp_path / "nowhere"))))


def test_the_same_text_gives_the_same_file(flags, tmp_path):
    """Also in another process."""
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders[:2]:
        prepro.main(flags | dict(preprocessed=str(folder)))
    done = forked_script("prepro.py", **flags | dict(preprocessed=folders[2]))
    assert done.returncode == 0, done.stderr
    one, *others = ((folder / "bpe.model").read_bytes() for folder in folders)
    assert others == [one, one]


def test_the_fingerprint_is_of_the_pieces(flags, pieces, tmp_path):
    """Not of the rest of the file, as the folder or the version that it was made with."""
    path = tmp_path / "bpe.model"
    place = pieces.proto.index(b"rules.tsv")
    path.write_bytes(pieces.proto[:place] + b"RULES" + pieces.proto[place + 5 :])
    assert fingerprints([Pieces(path)]) == fingerprints([pieces])
    other = flags | dict(source_train=flags["target_train"], preprocessed=str(tmp_path / "other"))
    prepro.main(other)
    assert fingerprints(load_vocabs(with_recipe(other))) != fingerprints([pieces])


def test_without_a_flag_training_uses_the_pieces_that_are_there(flags, tmp_path, capsys):
    """Whatever the recipe's own number is; the flag is then wanted for nothing."""
    del (free := dict(flags))["vocab_size"]
    for recipe in ("tiny", "paper"):
        more = dict(recipe=recipe, logdir=str(tmp_path / recipe), num_epochs=1, batch_size=200)
        train.main(free | more)
        assert load_hparams({"logdir": more["logdir"]}, trained=True)[0].vocab_size == 180


# BPE-dropout --------------------------------------------------------------------------


def test_bpe_dropout_is_decided_by_seed_and_epoch(flags, pieces, capsys):
    hp = with_recipe(flags | dict(bpe_dropout=0.1))
    vocabs = pieces, pieces
    data = load_train_data(hp, vocabs)

    def ids(seed, epoch, dropout=0.1):
        cut = cut_anew(data, vocabs, dropout, seed, epoch)
        assert [pieces.decode(x) for x in cut.X] == data.Sources
        assert [pieces.decode(y) for y in cut.Y] == data.Targets
        return np.concatenate([cut.X.ids, cut.Y.ids]).tolist()

    first = ids(0, 1)
    assert first == ids(0, 1)
    others = ids(0, 2), ids(1, 1), np.concatenate([data.X.ids, data.Y.ids]).tolist()
    assert first not in others
    # The more is dropped, the more pieces there are; all of it leaves characters.
    assert len(others[2]) < len(first) < len(ids(0, 1, dropout=0.5))


def test_bpe_dropout_is_for_training_alone(flags, pieces, capsys):
    plain, dropping = (with_recipe(flags | dict(bpe_dropout=p)) for p in (0.0, 0.5))
    vocabs = pieces, pieces
    ids = [load_test_data(hp, vocabs).data.X.ids for hp in (plain, dropping)]
    np.testing.assert_array_equal(*ids)
    data = load_train_data(dropping, vocabs)
    (uncut, _), (first, _), (second, _) = (
        train.epoch_batches(data, vocabs, hp, epoch)
        for hp, epoch in ((plain, 1), (dropping, 1), (dropping, 2))
    )
    tokens = [sum(int(tf.math.count_nonzero(y)) for _, y in batches) for batches in (uncut, first)]
    assert tokens[1] > 1.2 * tokens[0]
    assert sum(int(tf.math.count_nonzero(y)) for _, y in second) != tokens[1]


@pytest.mark.parametrize("more", [dict(), dict(recipe="tiny", sinusoid=False)])
def test_bpe_dropout_is_refused_where_it_cannot_be(more):
    with pytest.raises(InputError, match="bpe_dropout is for pieces"):
        with_recipe(dict(bpe_dropout=0.1) | more)


# The recipe tiny, from text to text ---------------------------------------------------


@pytest.fixture(scope="module")
def run(flags):
    """Trained by the script for three epochs, with the test set as development set."""
    more = dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    more |= dict(num_epochs=3, warmup_steps=1000, batch_tokens=400, bpe_dropout=0.1)
    done = forked_script("train.py", **flags, **more)
    assert done.returncode == 0, done.stderr
    return flags | more, done.stdout


def test_each_epoch_tells_the_dev_bleu_and_the_best_is_remembered(run):
    flags, printed = run
    told = [float(bleu) for bleu in re.findall(r", dev loss [\d.]+ BLEU ([\d.]+)", printed)]
    points = scalars(flags["logdir"])
    assert set(points) == events.BY_STEP | {"dev_loss", "dev_bleu"}
    assert [round(bleu, 2) for bleu in points["dev_bleu"].values()] == told
    steps = [checkpoint.epoch_and_step(p)[1] for p in checkpoint.named(flags["logdir"])]
    assert list(points["dev_bleu"]) == steps and len(told) == 3
    names = [path.name for path in checkpoint.named(flags["logdir"])]
    scores = checkpoint.read_scores(flags["logdir"])
    assert {name: round(bleu, 2) for name, bleu in scores.items()} == dict(
        zip(names, told, strict=True)
    )
    assert checkpoint.best(flags["logdir"]).name == names[told.index(max(told))]


def test_the_learning_rate_is_in_tensorboard(run):
    hp = with_recipe(run[0])
    points = scalars(run[0]["logdir"])["lr"]
    for step, rate in points.items():
        assert rate == pytest.approx(hp.peak_lr * step / hp.warmup_steps, rel=1e-5)


def test_the_dev_bleu_is_what_eval_gives_the_best_checkpoint(run):
    """The test set is the development set here."""
    own = {name: run[0][name] for name in ("logdir", "results")}
    done = forked_script("eval.py", **own, best=True, beam=1)
    best = checkpoint.best(run[0]["logdir"])
    bleu = checkpoint.read_scores(run[0]["logdir"])[best.name]
    assert f"Decoding = greedy search, {best.name}\n" in done.stdout
    assert f"sacreBLEU = {bleu:.2f} " in done.stdout


@pytest.mark.parametrize("way", [dict(), dict(beam=1, average=1), dict(best=True, beam=3)])
def test_eval_writes_plain_text_for_each_line(run, way):
    flags, _ = run
    done = forked_script("eval.py", logdir=flags["logdir"], results=flags["results"], **way)
    assert done.returncode == 0, done.stderr
    if not way:  # the recipe's own way
        assert (
            "mean of 3 checkpoints" in done.stdout
            and "beam 5, length penalty paper 1.4" in done.stdout
        )
    name = re.search(r"All of it: (.+)", done.stdout)[1]
    *records, closing = Path(name).read_text("utf-8").split("\n\n")
    sources, references = (read_test(flags[f"{side}_test"])[1] for side in ("source", "target"))
    assert len(records) == len(sources) == 30
    for record, source, reference in zip(records, sources, references, strict=True):
        lines = record.split("\n")
        assert lines[:2] == [f"- source: {source}", f"- expected: {reference}"]
        assert lines[2].startswith("- got: ") and "▁" not in lines[2]
    assert "Left out = 0 of 30" in closing


def test_a_sentence_longer_than_any_in_training_is_translated(run, tmp_path):
    flags, _ = run
    long = " ".join(read_test(flags["source_test"])[1])
    tests = write_corpus(tmp_path, [(long, "x"), ("kurz", "y")])
    names = {name: tests[name] for name in ("source_test", "target_test", "results")}
    done = forked_script("eval.py", logdir=flags["logdir"], **names)
    assert done.returncode == 0, done.stderr
    assert "Left out = 0 of 2" in done.stdout
    _, hp, model, vocabs = load(dict(logdir=flags["logdir"]))
    X = load_test_data(dataclasses.replace(hp, **names), vocabs).data.X
    assert X.lengths[0] > 3 * hp.maxlen


def test_a_translation_has_twice_the_words_of_its_source_and_ten_at_most(run):
    """Of a model that never ends a sentence; its memory is bounded by smaller batches."""
    _, hp, model, vocabs = load(dict(logdir=run[0]["logdir"]))
    table = model.enc_words.embed.lookup_table
    table.assign(np.where(np.arange(len(vocabs[0]))[:, None] == END, 0, table + 1.0))
    X = Ragged.of([[9] * length for length in (3, 700, 5)])
    for beam in (1, 2):
        found = translate(make_search(model, hp, beam), X, hp)
        assert [np.count_nonzero(best) for (best, _), *_ in found] == [16, 1410, 20]


def test_the_order_of_the_sentences_is_kept_and_their_company_does_not_matter(run, monkeypatch):
    _, hp, model, vocabs = load(dict(logdir=run[0]["logdir"]))
    X = load_test_data(hp, vocabs).data.X
    monkeypatch.setattr(decoding, "DECODED_HYPOTHESES", 35)
    assert len(X) > decoding.sentences_at_once(X.lengths.max(), hp.beam) == 7
    for beam in (1, 4):
        search = make_search(model, hp, beam)
        together = to_text(translate(search, X, hp), vocabs[1])
        alone = [to_text(translate(search, Ragged.of([x.tolist()]), hp), vocabs[1])[0] for x in X]
        assert together == alone and len(set(together)) > 5


def test_a_translation_has_the_score_that_the_search_gave_it(run):
    _, hp, model, vocabs = load(dict(logdir=run[0]["logdir"]))
    x = load_test_data(hp, vocabs).data.X.pad()  # (N, T)
    preds, scores = make_search(model, hp, 4)(x)
    limits = 2 * np.count_nonzero(x, axis=1) + 10
    anew = decoding.score(model, x, preds[:, 0], limits, paper_penalty(hp.alpha), [PAD])
    np.testing.assert_allclose(anew, scores[:, 0], rtol=1e-4)
    preds, scores = make_search(model, hp, 1, scored=True)(x)
    anew = decoding.score(model, x, preds[:, 0], limits, paper_penalty(hp.alpha), [PAD])
    np.testing.assert_allclose(anew, scores[:, 0], rtol=1e-5)


def test_averaging_is_the_mean_of_the_last_checkpoints(run):
    flags, _ = run
    logdir = {"logdir": flags["logdir"]}
    each = []
    for path in checkpoint.named(flags["logdir"])[-2:]:
        _, _, model, _ = load(logdir | dict(average=1))
        checkpoint.restore(checkpoint.trackable(model), path)
        each.append([v.numpy() for v in model.trainable_variables])
    paths, _, model, _ = load(logdir | dict(average=2))
    assert paths == checkpoint.named(flags["logdir"])[-2:]
    for variable, *two in zip(model.trainable_variables, *each, strict=True):
        np.testing.assert_allclose(variable, np.mean(two, axis=0), atol=1e-6)
        assert np.any(two[0] != two[1])


def test_training_stops_when_the_dev_bleu_gets_no_better(flags, tmp_path, capsys):
    """With a learning rate of next to nothing the first epoch stays the best."""
    still = flags | dict(
        logdir=str(tmp_path),
        source_dev=flags["source_test"],
        target_dev=flags["target_test"],
        lr=1e-30,
        num_epochs=9,
        patience=2,
        keep=1,
    )
    train.main(still)
    assert "No better dev BLEU than" in capsys.readouterr().out
    names = [path.name[:14] for path in checkpoint.named(tmp_path)]
    assert names == ["model_epoch_01", "model_epoch_03"]  # the best, and the last one
    assert checkpoint.best(tmp_path).name.startswith(names[0])

    train.main(still)
    assert "stopping" in capsys.readouterr().out
    assert [path.name[:14] for path in checkpoint.named(tmp_path)] == names


def test_the_scores_of_a_run_that_was_gone_back_on_do_not_count(flags, tmp_path):
    dev = dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    back = flags | dev | dict(logdir=str(tmp_path), num_epochs=3)
    train.main(back)
    names = [path.name for path in checkpoint.named(tmp_path)]
    assert [*checkpoint.read_scores(tmp_path)] == names

    hp, _ = load_hparams({"logdir": str(tmp_path)}, trained=True)
    vocabs = load_vocabs(hp)
    # The set is known by its text, under whatever path.
    link = tmp_path / "link"
    link.symlink_to(hp.source_dev)
    same, other = (
        load_test_data(dataclasses.replace(hp, source_dev=path), vocabs, "dev").digest()
        for path in (str(link), hp.target_dev)
    )
    assert [*train.Training(hp, vocabs, tmp_path / names[1], same).scores] == names[:2]
    assert train.Training(hp, vocabs, tmp_path / names[1], other).scores == {}


def test_it_learns_to_copy_text_with_digits_and_punctuation(tmp_path, record_property):
    """The recipe tiny until it translates: sentences into themselves.

    Each word becomes a piece, so that all are learned: docs/development.md has the margin.
    """
    rng = np.random.default_rng(0)
    words = "Ab, c3 d! Ef 42 g? (hi)".split()
    lines = [" ".join(rng.choice(words, size=5)) for _ in range(600)]
    flags = write_corpus(tmp_path, list(zip(lines[:550], lines[:550], strict=True)))
    more = dict(recipe="tiny", hidden_units=64, num_blocks=1, num_heads=4, seed=SEED)
    more |= dict(dropout_rate=0.0, batch_tokens=150, lr=0.004, warmup_steps=100, num_epochs=22)
    prepro.main(flags | more)
    train.main(flags | more)
    _, hp, model, vocabs = load(dict(logdir=flags["logdir"], average=1))
    X = Ragged.of(vocabs[0].encode(lines[550:]))
    for beam in (1, 4):
        got = to_text(translate(make_search(model, hp, beam), X, hp), vocabs[1])
        share = float(np.mean([a == b for a, b in zip(got, lines[550:], strict=True)]))
        record_property(f"share copied, beam {beam}", share)
        assert share > 0.9


def test_the_beam_finds_the_models_own_probabilities(run):
    """Scores with no penalty are the log-probabilities that the whole sentence gets."""
    _, hp, model, vocabs = load(dict(logdir=run[0]["logdir"], alpha=0.0))
    X = load_test_data(hp, vocabs).data.X
    found = translate(make_search(model, hp, 4, nbest=4), X, hp)
    for x, translations in zip(X, found, strict=True):
        scores = [score for _, score in translations]
        assert scores == sorted(scores, reverse=True)
        for ids, score in translations:
            ids = ids[: np.count_nonzero(ids)][None]  # (1, T)
            logits = model(x[None], ids).numpy()
            logits[:, :, 0] = -np.inf  # <PAD> is never chosen
            logp = tf.gather(tf.nn.log_softmax(logits), ids, batch_dims=2)
            assert float(tf.reduce_sum(logp)) == pytest.approx(float(score), abs=1e-3)
