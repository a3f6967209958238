"""CTranslate2: a model converted to its format, and translated with.

CTranslate2 (https://opennmt.net/CTranslate2) is a decoder in C++ that multiplies in int8, too.
"""

import tempfile
from pathlib import Path

import numpy as np

from data_load import Ragged
from hparams import InputError
from modules import Normalize
from text import END, PAD, SPECIALS, START, UNK


def library():
    """The package, which is an extra.

    Raises:
      InputError: it is not installed.
    """
    try:
        import ctranslate2
    except ImportError:
        raise InputError(
            "CTranslate2 is not installed: `pip install ctranslate2` (with `make`'s environment:"
            " `.venv/bin/pip install ctranslate2`)"
        ) from None
    return ctranslate2


def write(hp, model, vocabs, path, quantization="float32"):
    """Write the model as a folder that `ctranslate2.Translator` loads.

    The vocabulary is in it, and of pieces the sentencepiece model `bpe.model`.

    Args:
      hp, model, vocabs: what `load` gave.
      path: a folder that is not there yet.
      quantization: of the matrices, "float32" or "int8".

    Raises:
      InputError: CTranslate2 is not installed, or has no such layers.
    """
    library()
    if hp.relu_projections or hp.masks != "ids":
        raise InputError(
            f"recipe {hp.recipe}: CTranslate2 has no attention whose Q, K and V pass through a ReLU"
            " and whose masks are read from the activations: export as saved_model, or train with"
            " --recipe updated, paper or tiny"
        )
    spec = specification(hp, model)
    for vocab, register in zip(
        vocabs, (spec.register_source_vocabulary, spec.register_target_vocabulary), strict=True
    ):
        register([vocab.token(i) for i in range(len(vocab))])
    if hp.tokens == "pieces":
        spec.register_file(str(hp.pieces_path), "bpe.model")
    spec.validate()
    spec.optimize(quantization)
    Path(path).mkdir()
    spec.save(str(path))


def specification(hp, model):
    """A built `Transformer` as CTranslate2 writes it down."""
    specs = library().specs
    spec = specs.TransformerSpec.from_config(hp.num_blocks, hp.num_heads, pre_norm=False)
    spec.config.unk_token, spec.config.eos_token = SPECIALS[UNK], SPECIALS[END]
    spec.config.bos_token = spec.config.decoder_start_token = SPECIALS[START]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = Normalize().epsilon
    set_words(spec.encoder, model.enc_words, spec.encoder.embeddings[0], hp)
    set_words(spec.decoder, model.dec_words, spec.decoder.embeddings, hp)
    for layer, block in zip(spec.encoder.layer, model.enc_blocks, strict=True):
        set_self_attention(layer.self_attention, block.self_attention)
        set_feedforward(layer.ffn, block.feedforward)
    for layer, block in zip(spec.decoder.layer, model.dec_blocks, strict=True):
        set_self_attention(layer.self_attention, block.self_attention)
        set_cross_attention(layer.attention, block.vanilla_attention)
        set_feedforward(layer.ffn, block.feedforward)
    set_logits(spec.decoder.projection, model)
    return spec


def set_words(spec, words, embeddings, hp):
    """The vectors of words and of positions; the two are added as they are here."""
    embeddings.weight = words.embed.table().numpy()  # (V, C)
    count = words.pe.vocab_size if words.pe.weights else 2 * hp.longest + 11
    spec.position_encodings.encodings = words.pe(np.arange(count)[None])[0].numpy()  # (T, C)


def set_self_attention(spec, attention):
    """Q, K and V side by side, and W_O."""
    set_dense(spec.linear[0], attention.query, attention.key, attention.value)
    set_output(spec.linear[1], attention)
    set_normalize(spec.layer_norm, attention.normalize)


def set_cross_attention(spec, attention):
    """Q; K and V side by side; and W_O."""
    set_dense(spec.linear[0], attention.query)
    set_dense(spec.linear[1], attention.key, attention.value)
    set_output(spec.linear[2], attention)
    set_normalize(spec.layer_norm, attention.normalize)


def set_output(spec, attention):
    """W_O, without which the joined heads stay as they are."""
    if attention.output_projection:
        set_dense(spec, attention.output_projection)
    else:
        spec.weight = np.eye(attention.num_units, dtype=np.float32)


def set_feedforward(spec, feedforward):
    """Both linear maps, and the normalisation behind them."""
    set_dense(spec.linear_0, feedforward.inner)
    set_dense(spec.linear_1, feedforward.outer)
    set_normalize(spec.layer_norm, feedforward.normalize)


def set_dense(spec, *layers):
    """Linear maps of the same inputs as one: (C_out, C_in), where Keras has (C_in, C_out)."""
    spec.weight = np.concatenate([layer.kernel.numpy().T for layer in layers])
    spec.bias = np.concatenate([layer.bias.numpy() for layer in layers])


def set_normalize(spec, normalize):
    """The weights of a `Normalize`."""
    spec.gamma, spec.beta = normalize.gamma.numpy(), normalize.beta.numpy()


def set_logits(spec, model):
    """The map to the logits, in which `<PAD>` is so unlikely that it is never chosen."""
    if model.dec_words.embed is model.enc_words.embed:
        spec.weight = model.dec_words.embed.lookup_table.numpy()  # (V, C)
        spec.bias = np.zeros(len(spec.weight), np.float32)
    else:
        set_dense(spec, model.logits)
    spec.bias[PAD] = -1e9


class Search:
    """Translates source ids as `decoding.translate` does, by CTranslate2.

    Args:
      hp, model, vocabs, quantization: as in `write`.
      nbest: translations of a sentence.

    Raises:
      InputError: as `write`, or the length penalty is one that CTranslate2 does not have.
    """

    def __init__(self, hp, model, vocabs, nbest, quantization):
        if hp.beam > 1 and hp.length_penalty != "ctranslate2":
            raise InputError(
                f"CTranslate2 does not have the length penalty {hp.length_penalty}: say"
                " --length_penalty ctranslate2 and an --alpha, of which 1 is usual, or --beam 1"
            )
        self.hp, self.nbest, (self.source, self.target) = hp, nbest, vocabs
        self.ids = {self.target.token(i): i for i in range(len(self.target))}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            write(hp, model, vocabs, path, quantization)
            self.translator = library().Translator(str(path), compute_type=quantization)

    def __call__(self, X: Ragged):
        """The translations of each sentence, best first, as pairs of ids (T,) and score."""
        found = [None] * len(X)
        # Of a length together, since those have the same limit.
        rows = {length: np.flatnonzero(X.lengths == length) for length in np.unique(X.lengths)}
        jobs = {length: self.start(X, rows[length], length) for length in rows}
        for length, results in jobs.items():
            for row, result in zip(rows[length], results, strict=True):
                found[row] = self.best(result.result())
        return found

    def start(self, X, rows, length):
        """Begin to translate sentences of a length, without waiting for them."""
        tokens = [[self.source.token(i) for i in X[row][:-1]] for row in rows]  # it adds </S>
        # Words at most, as in `decoding.make_search`.
        limit = 2 * length + 10 if self.hp.unlimited else self.hp.maxlen
        return self.translator.translate_batch(
            tokens,
            max_batch_size=4096,
            batch_type="tokens",
            asynchronous=True,
            beam_size=self.hp.beam,
            num_hypotheses=self.nbest,
            length_penalty=self.hp.alpha if self.hp.beam > 1 else 0,
            min_decoding_length=0,
            max_decoding_length=int(limit),
            max_input_length=self.hp.longest,
            return_scores=True,
        )

    def best(self, result):
        """Its translations of a sentence as pairs of ids and score."""
        ids = [np.array([self.ids[token] for token in words], int) for words in result.hypotheses]
        return [*zip(ids, result.scores, strict=True)]
