"""The Transformer, figure 1 of the paper, with the switches that the recipes set.

The letters of the axes are those of `modules.py`.
"""

import keras
import tensorflow as tf
from keras import ops

from modules import (
    Composite,
    Dropout,
    Embedding,
    Feedforward,
    MultiheadAttention,
    PositionalEncoding,
    active,
)
from text import PAD, START


class InputEmbedding(Composite):
    """Words and their positions as vectors (figure 1, bottom): (N, T) int32 -> (N, T, C).

    Where a word is `<PAD>` there is nothing: its position is not added.

    Args:
      embed: the `Embedding` of the words.
      pe: the layer that makes vectors of the positions.
      dropout_rate: share of units dropped in training.
    """

    def __init__(self, embed, pe, dropout_rate, **kwargs):
        super().__init__(**kwargs)
        self.embed = embed
        self.pe = pe
        self.dropout = Dropout(dropout_rate)

    def call(self, ids, first=0, training=None):
        """`first` is the position of the first id, () int32."""
        positions = first + ops.arange(ops.shape(ids)[1])[None]  # (1, T)
        outputs = self.embed(ids)  # (N, T, C)
        key_masks = ops.cast(active(outputs), outputs.dtype)[:, :, None]  # (N, T, 1)
        outputs = (outputs + self.pe(positions)) * key_masks
        return self.dropout(outputs, training=training)


class EncoderBlock(Composite):
    """Figure 1, left: (N, T, C) -> (N, T, C).

    Args:
      attention: arguments of `MultiheadAttention`.
      feedforward: arguments of `Feedforward`.
    """

    def __init__(self, attention, feedforward, **kwargs):
        super().__init__(**kwargs)
        self.self_attention = MultiheadAttention(**attention)
        self.feedforward = Feedforward(**feedforward)

    def call(self, enc, masks=None, training=None):
        """(N, T, C), and which positions count (N, T) bool -> (N, T, C)."""
        enc = self.self_attention(enc, enc, masks, training=training)
        return self.feedforward(enc, training=training)


class DecoderBlock(Composite):
    """Figure 1, right: (N, T_q, C), (N, T_k, C) -> (N, T_q, C). Arguments as `EncoderBlock`."""

    def __init__(self, attention, feedforward, **kwargs):
        super().__init__(**kwargs)
        self.self_attention = MultiheadAttention(**attention)
        self.vanilla_attention = MultiheadAttention(**attention)
        self.feedforward = Feedforward(**feedforward)

    def call(self, dec, memory, masks=None, memory_masks=None, training=None):
        """(N, T_q, C), memory (N, T_k, C), which of their positions count -> (N, T_q, C)."""
        dec = self.self_attention(dec, dec, masks, causality=True, training=training)
        dec = self.vanilla_attention(dec, memory, memory_masks, training=training)
        return self.feedforward(dec, training=training)

    def step(self, dec, past, memory, masks=None):
        """`call` for the newest word of each sentence, which sees itself and the past.

        There may be several hypotheses of a sentence, one after the other. They ask its
        memory as so many queries, and it need not be there several times.

        Args:
          dec: (N * beam, 1, C).
          past: `Projected` of the words before, (N * beam, h, T, C/h).
          memory: `Projected` of the encoder's output, (N, h, T_k, C/h).
          masks: (N * beam, 1) bool, or None, as in `MultiheadAttention.project`.

        Returns:
          ((N * beam, 1, C), Projected): the output, and the past with this word.
        """
        past = past.then(self.self_attention.project(dec, masks))
        dec = self.self_attention.attend(dec, past)
        flat, (N, *_) = ops.shape(dec), ops.shape(memory.K)
        dec = ops.reshape(dec, (N, -1, flat[-1]))  # (N, beam, C)
        dec = self.vanilla_attention.attend(dec, memory)
        return ops.reshape(self.feedforward(dec), flat), past  # (N * beam, 1, C)


class Transformer(Composite, keras.Model):
    """Source ids and target ids (N, T) int32 -> logits of the targets (N, T, V).

    Position i of the logits depends on the targets before i only. The defaults are
    as documented; the paper has every switch the other way.

    Args:
      source_vocab, target_vocab: words in the two vocabularies, the latter is V.
      maxlen: T, the longest sentence where positions are learned, `</S>` included.
      hidden_units, num_blocks, num_heads, ffn_units, dropout_rate, sinusoid, paired,
      relu_projections, output_projection, shared, pad_logit, masks, dropout_on: as in `hparams.py`.
    """

    def __init__(
        self,
        source_vocab,
        target_vocab,
        maxlen,
        hidden_units,
        num_blocks,
        num_heads,
        ffn_units=0,
        dropout_rate=0.0,
        sinusoid=False,
        paired=False,
        relu_projections=True,
        output_projection=False,
        shared=False,
        pad_logit=False,
        masks="activations",
        dropout_on="attention",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.masks_from_ids = masks == "ids"
        on_weights = dropout_rate if dropout_on in ("attention", "both") else 0.0
        on_outputs = dropout_rate if dropout_on in ("sublayers", "both") else 0.0
        attention = dict(
            num_units=hidden_units,
            num_heads=num_heads,
            dropout_rate=on_weights,
            residual_dropout_rate=on_outputs,
            relu=relu_projections,
            output_projection=output_projection,
            mask_queries=not self.masks_from_ids,
        )
        feedforward = dict(
            inner_units=ffn_units or 4 * hidden_units,
            num_units=hidden_units,
            residual_dropout_rate=on_outputs,
        )

        def positions():
            if sinusoid:
                return PositionalEncoding(hidden_units, paired, zero_pad=False, scale=False)
            return Embedding(maxlen, hidden_units, zero_pad=False, scale=False)

        # A matrix that scores the outputs too: drawn so that logits begin near 1.
        spread = keras.initializers.RandomNormal(stddev=hidden_units**-0.5)
        if shared:
            enc_embed = dec_embed = Embedding(
                target_vocab, hidden_units, pad_logit=pad_logit, initializer=spread
            )
        else:
            enc_embed = Embedding(source_vocab, hidden_units)
            dec_embed = Embedding(target_vocab, hidden_units)
        self.enc_words = InputEmbedding(enc_embed, positions(), dropout_rate)
        self.enc_blocks = [EncoderBlock(attention, feedforward) for _ in range(num_blocks)]
        self.dec_words = InputEmbedding(dec_embed, positions(), dropout_rate)
        self.dec_blocks = [DecoderBlock(attention, feedforward) for _ in range(num_blocks)]
        self.logits = dec_embed.score if shared else keras.layers.Dense(target_vocab)

    def call(self, x, y, training=None, istarget=None):
        """Where `istarget`, (N, T) bool, is given, the logits of those M targets only, (M, V)."""
        memory = self.encode(x, training)
        dec = self.decode(shift_right(y), memory, self.masks(x), training)  # (N, T, C)
        if istarget is not None:
            dec = tf.boolean_mask(dec, istarget)  # (M, C)
        return self.logits(dec)  # (N, T, V), or (M, V)

    def masks(self, ids):
        """Which ids are words, (N, T) bool; None where attention reads it from zeros."""
        return ids != PAD if self.masks_from_ids else None

    def encode(self, x, training=None):
        """Source ids (N, T) -> the encoder's output (N, T, C)."""
        enc = self.enc_words(x, training=training)  # (N, T, C)
        for block in self.enc_blocks:
            enc = block(enc, self.masks(x), training=training)
        return enc

    def decode(self, decoder_inputs, memory, memory_masks=None, training=None):
        """Target ids that begin with `<S>` (N, T), (N, T, C) -> (N, T, C)."""
        dec = self.dec_words(decoder_inputs, training=training)  # (N, T, C)
        masks = self.masks(decoder_inputs)
        for block in self.dec_blocks:
            dec = block(dec, memory, masks, memory_masks, training=training)
        return dec

    def remember(self, x):
        """Encode the sources (N, T): a block's `Projected` of the memory, for all blocks."""
        memory, masks = self.encode(x), self.masks(x)
        return [block.vanilla_attention.project(memory, masks) for block in self.dec_blocks]

    def nothing(self, N):
        """A block's `Projected` of the words so far, for all blocks, before the first word."""
        return [block.self_attention.nothing(N) for block in self.dec_blocks]

    def step(self, ids, pasts, memories):
        """The newest word of each hypothesis -> logits of the next one.

        Args:
          ids: (N * beam,) int32.
          pasts: what `nothing` or the last step returned.
          memories: what `remember` returned.

        Returns:
          ((N * beam, V), list): the logits, and the pasts with this word in them.
        """
        t = ops.shape(pasts[0].K)[2]
        masks = self.masks(ids[:, None])  # (N * beam, 1)
        dec = self.dec_words(ids[:, None], first=t)  # (N * beam, 1, C)
        new_pasts = []
        for block, past, memory in zip(self.dec_blocks, pasts, memories, strict=True):
            dec, past = block.step(dec, past, memory, masks)
            new_pasts.append(past)
        return self.logits(dec[:, 0]), new_pasts  # (N * beam, V)


def shift_right(y):
    """What the decoder has seen before it gives each word of `y`.

    >>> import numpy as np
    >>> shift_right(np.array([[5, 6, 3, 0]])).numpy().tolist()
    [[2, 5, 6, 3]]
    """
    return ops.concatenate([ops.full_like(y[:, :1], START), y[:, :-1]], axis=-1)  # (N, T)


SWITCHES = (
    "maxlen hidden_units num_blocks num_heads ffn_units dropout_rate sinusoid paired"
    " relu_projections output_projection shared pad_logit masks dropout_on"
).split()


POLICIES = dict(float32="float32", bfloat16="mixed_bfloat16")


def make_model(hp, source_vocab, target_vocab):
    """A built `Transformer` of the shape that the hyperparameters say."""
    switches = {name: getattr(hp, name) for name in SWITCHES}
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[hp.precision])  # for the layers that are made now
    model = Transformer(source_vocab, target_vocab, **switches)
    keras.config.set_dtype_policy(policy)
    nothing = ops.zeros((1, min(2, hp.maxlen)), "int32")
    model(nothing, nothing)  # Keras makes the weights of a layer at its first call
    return model
