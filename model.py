"""The Transformer, figure 1 of the paper, in the form that the documents describe.

The letters of the axes are those of `modules.py`.
"""

from typing import NamedTuple

import keras
from keras import ops

from data_load import START
from modules import Embedding, Feedforward, MultiheadAttention, PositionalEncoding, active


class Words(keras.layers.Layer):
    """Words and their positions as vectors (figure 1, bottom): (N, T) int32 -> (N, T, C).

    Where a word is `<PAD>` there is nothing: its position is not added.

    Args:
      vocab_size: words in the vocabulary.
      maxlen: T, how many positions there are.
      num_units: C.
      dropout_rate: share of units dropped in training.
      sinusoid: whether positions are sinusoids, or learned.
    """

    def __init__(self, vocab_size, maxlen, num_units, dropout_rate, sinusoid, **kwargs):
        super().__init__(**kwargs)
        self.embed = Embedding(vocab_size, num_units)
        positions = PositionalEncoding if sinusoid else Embedding
        self.pe = positions(maxlen, num_units, zero_pad=False, scale=False)
        self.dropout = keras.layers.Dropout(dropout_rate)

    def call(self, ids, positions=None, training=None):
        if positions is None:
            positions = ops.arange(ops.shape(ids)[1])[None]  # (1, T)
        outputs = self.embed(ids)  # (N, T, C)
        key_masks = ops.cast(active(outputs), outputs.dtype)[:, :, None]  # (N, T, 1)
        outputs = (outputs + self.pe(positions)) * key_masks
        return self.dropout(outputs, training=training)


class EncoderBlock(keras.layers.Layer):
    """Figure 1, left: (N, T, C) -> (N, T, C)."""

    def __init__(self, num_units, num_heads, dropout_rate, **kwargs):
        super().__init__(**kwargs)
        self.self_attention = MultiheadAttention(num_units, num_heads, dropout_rate)
        self.feedforward = Feedforward(4 * num_units, num_units)

    def call(self, enc, training=None):
        enc = self.self_attention(enc, enc, training=training)
        return self.feedforward(enc)


class DecoderBlock(keras.layers.Layer):
    """Figure 1, right: (N, T_q, C), (N, T_k, C) -> (N, T_q, C)."""

    def __init__(self, num_units, num_heads, dropout_rate, **kwargs):
        super().__init__(**kwargs)
        self.self_attention = MultiheadAttention(num_units, num_heads, dropout_rate)
        self.vanilla_attention = MultiheadAttention(num_units, num_heads, dropout_rate)
        self.feedforward = Feedforward(4 * num_units, num_units)

    def call(self, dec, memory, training=None):
        dec = self.self_attention(dec, dec, causality=True, training=training)
        dec = self.vanilla_attention(dec, memory, training=training)
        return self.feedforward(dec)

    def step(self, dec, t, past, memory):
        """`call` for position `t` alone, (N, 1, C), which sees itself and the past.

        Args:
          past, memory: `Projected`, of the positions before `t` and of the encoder.

        Returns:
          ((N, 1, C), Projected): the output, and the past with position `t` in it.
        """
        past = past.put(t, self.self_attention.project(dec))
        dec = self.self_attention.attend(dec, past)
        dec = self.vanilla_attention.attend(dec, memory)
        return self.feedforward(dec), past


class DecoderState(NamedTuple):
    """What decoding word by word carries from one word to the next."""

    t: keras.KerasTensor  # () int32, the position whose word is given next
    pasts: tuple  # a block's `Projected` of the words before, (N, h, T, C/h)
    memories: tuple  # a block's `Projected` of the encoder's output, which stays


class Transformer(keras.Model):
    """Source ids and target ids (N, T) int32 -> logits of the targets (N, T, V).

    Position i of the logits depends on the targets before i only.

    Args:
      source_vocab, target_vocab: words in the two vocabularies, the latter is V.
      maxlen: T, the longest sentence, `</S>` included.
      hidden_units, num_blocks, num_heads, dropout_rate, sinusoid: as in `hparams.py`.
    """

    def __init__(
        self,
        source_vocab,
        target_vocab,
        maxlen,
        hidden_units,
        num_blocks,
        num_heads,
        dropout_rate=0.0,
        sinusoid=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.maxlen = maxlen
        words = (maxlen, hidden_units, dropout_rate, sinusoid)
        block = (hidden_units, num_heads, dropout_rate)
        self.enc_words = Words(source_vocab, *words)
        self.enc_blocks = [EncoderBlock(*block) for _ in range(num_blocks)]
        self.dec_words = Words(target_vocab, *words)
        self.dec_blocks = [DecoderBlock(*block) for _ in range(num_blocks)]
        self.logits = keras.layers.Dense(target_vocab)

    def call(self, x, y, training=None):
        memory = self.encode(x, training)
        dec = self.decode(shift_right(y), memory, training)
        return self.logits(dec)  # (N, T, V)

    def encode(self, x, training=None):
        """Source ids (N, T) -> the encoder's output (N, T, C)."""
        enc = self.enc_words(x, training=training)  # (N, T, C)
        for block in self.enc_blocks:
            enc = block(enc, training=training)
        return enc

    def decode(self, decoder_inputs, memory, training=None):
        """Target ids that begin with `<S>` (N, T), (N, T, C) -> (N, T, C)."""
        dec = self.dec_words(decoder_inputs, training=training)  # (N, T, C)
        for block in self.dec_blocks:
            dec = block(dec, memory, training=training)
        return dec

    def start(self, x):
        """Encode the sources (N, T): the `DecoderState` before the first word."""
        memory = self.encode(x)
        memories = tuple(block.vanilla_attention.project(memory) for block in self.dec_blocks)
        pasts = tuple(
            block.self_attention.nothing(ops.shape(x)[0], self.maxlen) for block in self.dec_blocks
        )
        return DecoderState(ops.zeros((), "int32"), pasts, memories)

    def step(self, ids, state):
        """The newest word of each sentence (N,) int32 -> logits of the next (N, V), and state."""
        t, pasts, memories = state
        dec = self.dec_words(ids[:, None], t[None, None])  # (N, 1, C)
        new_pasts = []
        for block, past, memory in zip(self.dec_blocks, pasts, memories, strict=True):
            dec, past = block.step(dec, t, past, memory)
            new_pasts.append(past)
        return self.logits(dec[:, 0]), DecoderState(t + 1, tuple(new_pasts), memories)  # (N, V)


def shift_right(y):
    """What the decoder has seen before it gives each word of `y`.

    >>> import numpy as np
    >>> shift_right(np.array([[5, 6, 3, 0]])).numpy().tolist()
    [[2, 5, 6, 3]]
    """
    return ops.concatenate([ops.full_like(y[:, :1], START), y[:, :-1]], axis=-1)  # (N, T)


def make_model(hp, source_vocab, target_vocab):
    """A built `Transformer` of the shape that the hyperparameters say."""
    model = Transformer(
        source_vocab,
        target_vocab,
        hp.maxlen,
        hp.hidden_units,
        hp.num_blocks,
        hp.num_heads,
        hp.dropout_rate,
        hp.sinusoid,
    )
    nothing = ops.zeros((1, hp.maxlen), "int32")
    model(nothing, nothing)  # Keras makes the weights of a layer at its first call
    return model
