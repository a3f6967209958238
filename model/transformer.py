"""The Transformer, figure 1 of the paper. The recipes set its arguments.

`hparams.py` explains the letters in shapes; `beam` is the number of hypotheses per sentence.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import ops

from hparams import MODELS, POSITIONS
from model.positions import Positions
from modules import (
    Dropout,
    Embedding,
    Feedforward,
    Linear,
    MultiheadAttention,
    Normalize,
    TranslationModel,
    shift_right,
)
from text.ids import PAD


class InputEmbedding(keras.layers.Layer):
    """Tokens and their positions as vectors (figure 1, bottom): (N, T) int32 -> (N, T, C).

    `<PAD>` gives a zero vector: no position is added to it.
    """

    def __init__(self, tokens, positions, dropout_rate, **kwargs):
        super().__init__(**kwargs)
        self.tokens = tokens
        self.positions = positions
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy)

    def build(self, ids_shape):
        for layer in (self.tokens, self.positions):
            if not layer.built:  # with tied embeddings, both sides have the same layer
                layer.build(ids_shape)

    def call(self, ids, training=None):
        """Embed complete sentences: (N, T) -> (N, T, C)."""
        outputs, _ = self.embed(ids, 0, self.positions.initial_state(ops.shape(ids)[0]))
        return self.dropout(outputs, training=training)

    def embed(self, ids, start, state):
        """As `Positions.embed`, of ids, without dropout; the first has the position `start`."""
        outputs = self.tokens(ids)  # (N, T, C)
        key_masks = ops.cast(ids != PAD, outputs.dtype)[:, :, None]  # (N, T, 1)
        positions = start + ops.arange(ops.shape(ids)[1], dtype="int32")  # (T,)
        outputs, state = self.positions.embed(outputs, positions, state)
        return outputs * key_masks, state


class EncoderBlock(keras.layers.Layer):
    """Figure 1, left: (N, T, C) -> (N, T, C).

    `attention` and `feedforward` are dicts, arguments of `MultiheadAttention` and `Feedforward`.
    """

    def __init__(self, attention, feedforward, **kwargs):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.self_attention = MultiheadAttention(**attention, dtype=dtype)
        self.feedforward = Feedforward(**feedforward, dtype=dtype)

    def build(self, enc_shape):
        self.self_attention.build(enc_shape, enc_shape)
        self.feedforward.build(enc_shape)

    def call(self, enc, masks=None, positions=None, training=None):
        """Encode (N, T, C); `masks` as in `project_keys_values`, `positions` as in `attend`."""
        enc = self.self_attention(enc, key_masks=masks, positions=positions, training=training)
        return self.feedforward(enc, training=training)


class DecoderBlock(keras.layers.Layer):
    """Figure 1, right: (N, T_q, C), (N, T_k, C) -> (N, T_q, C).

    Without `causality`, a query may attend to later tokens in training.
    """

    def __init__(self, attention, feedforward, causality=True, **kwargs):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.causality = causality
        self.self_attention = MultiheadAttention(**attention, dtype=dtype)
        self.vanilla_attention = MultiheadAttention(**attention, dtype=dtype)
        self.feedforward = Feedforward(**feedforward, dtype=dtype)

    def build(self, dec_shape, memory_shape):
        self.self_attention.build(dec_shape, dec_shape)
        self.vanilla_attention.build(dec_shape, memory_shape)
        self.feedforward.build(dec_shape)

    def call(self, dec, memory, masks=None, memory_masks=None, positions=None, training=None):
        """Decode all tokens at once; `memory` is the encoder's output."""
        causality = self.causality or not training
        dec = self.self_attention(
            dec, key_masks=masks, causality=causality, positions=positions, training=training
        )
        dec = self.vanilla_attention(dec, memory, memory_masks, training=training)
        return self.feedforward(dec, training=training)

    def decode_step(self, dec, cache, memory, masks=None, positions=None):
        """Decode the newest token of each row, which attends to itself and to earlier tokens.

        Consecutive rows may be hypotheses of one sentence. They attend to a single copy of its
        memory, as `beam` queries. `dec` is (N * beam, 1, C), and `masks` are (N * beam, 1). `cache`
        and `memory` are `KeysValues` of the earlier tokens, and of the encoder's output. Returns
        (N * beam, 1, C), and the cache with this token.
        """
        inputs = self.self_attention.add_norm.prepare(dec)
        cache = cache.append(self.self_attention.project_keys_values(inputs, masks))
        dec = self.self_attention.attend(dec, cache, positions=positions, inputs=inputs)
        shape, N = ops.shape(dec), ops.shape(memory.K)[0]
        dec = ops.reshape(dec, (N, -1, shape[-1]))  # (N, beam, C)
        dec = self.vanilla_attention.attend(dec, memory)
        return ops.reshape(self.feedforward(dec), shape), cache  # (N * beam, 1, C)


class DecoderCache(NamedTuple):
    """What decoding token by token keeps of the earlier tokens."""

    input: Any  # the state of `Positions.embed`
    blocks: list  # of KeysValues, one per decoder block, (N, h, T, C/h)


@keras.saving.register_keras_serializable("transformer")
class Transformer(TranslationModel):
    """Source ids and target ids (N, T) int32 -> logits of the targets (N, T, vocab).

    The logits at position i depend on the source and on the targets before i only. With
    `hp.causality` off, they depend on all targets in training.
    """

    def __init__(self, hp, source_vocab, target_vocab, **kwargs):
        super().__init__(hp, source_vocab, target_vocab, **kwargs)

        dtype = self.dtype_policy
        attention, feedforward = self.sublayer_args()
        source_tokens, target_tokens = self.token_layers()
        enc_blocks, dec_blocks = hp.block_counts.values()
        enc_embed, self.enc_positions = self.position_layers(enc_blocks, causality=False)
        dec_embed, self.dec_positions = self.position_layers(dec_blocks, causality=True)
        self.enc_input = InputEmbedding(source_tokens, enc_embed, hp.dropout_rate, dtype=dtype)
        block = dict(attention=attention, feedforward=feedforward, dtype=dtype)
        self.enc_blocks = [EncoderBlock(**block) for _ in range(enc_blocks)]
        self.dec_input = InputEmbedding(target_tokens, dec_embed, hp.dropout_rate, dtype=dtype)
        self.dec_blocks = [DecoderBlock(**block, causality=hp.causality) for _ in range(dec_blocks)]
        self.enc_norm, self.dec_norm = (
            Normalize(dtype=dtype) if hp.normalization == "pre" else None for _ in range(2)
        )
        self.output_layer = None if hp.tied_embeddings else Linear(target_vocab, dtype=dtype)
        self.build()

    def token_layers(self):
        """Return the `Embedding`s of source and target."""
        C, dtype = self.hp.hidden_units, self.dtype_policy.name
        if not self.hp.tied_embeddings:
            sizes = self.source_vocab, self.target_vocab
            return [Embedding(size, C, dtype=dtype) for size in sizes]
        # The matrix also computes the logits. With this deviation they start near 1.
        initializer = keras.initializers.RandomNormal(stddev=C**-0.5)
        logits = dict(pad_logit=self.hp.design.pad_logit, initializer=initializer)
        shared = Embedding(self.target_vocab, C, **logits, dtype=dtype)
        return shared, shared

    def position_layers(self, num_blocks, causality):
        """Return the `Positions` of the input, and those of each self-attention or None."""
        choice = POSITIONS[self.hp.positions]
        kind = choice.load()
        args = {name: getattr(self.hp, name) for name in ("maxlen", "hidden_units", "num_heads")}
        args |= dict(causality=causality, dtype=self.dtype_policy)
        if not choice.relative:
            return kind(**args), [None] * num_blocks
        layers = [kind(**args) for _ in range(1 if kind.shared else num_blocks)]
        return Positions(**args), layers * num_blocks if kind.shared else layers

    def sublayer_args(self):
        """Return the arguments of `MultiheadAttention` and `Feedforward`."""
        hp, design = self.hp, self.hp.design
        add_norm = dict(
            dropout_rate=hp.dropout_rate if design.drop_outputs else 0.0,
            residual=hp.residual,
            normalization=hp.normalization,
        )
        attention = dict(
            num_units=hp.hidden_units,
            num_heads=hp.num_heads,
            dropout_rate=hp.weight_dropout,
            add_norm=add_norm,
            relu=design.relu_projections,
            output_projection=design.output_projection,
            mask_queries=hp.mask_from == "activations",
            attention_score=hp.attention_score,
        )
        feedforward = dict(
            inner_units=hp.ffn_units or 4 * hp.hidden_units,
            num_units=hp.hidden_units,
            add_norm=add_norm,
            activation=design.ffn_activation,
        )
        return attention, feedforward

    def build(self, *_):
        if self.built:
            return
        ids, units = (None, None), (None, None, self.hp.hidden_units)
        self.enc_input.build(ids)
        for block in self.enc_blocks:
            block.build(units)
        self.dec_input.build(ids)
        for block in self.dec_blocks:
            block.build(units, units)
        for layer in self.enc_positions + self.dec_positions:
            if layer is not None and not layer.built:
                layer.build(None)
        for layer in filter(None, (self.enc_norm, self.dec_norm)):
            layer.build(units)
        self.output_bias = None
        if not self.hp.tied_embeddings:
            self.output_layer.build(units)
        elif self.hp.design.output_bias:
            shape = (self.target_vocab,)
            self.output_bias = self.add_weight(shape, initializer="zeros", name="output_bias")

    def call(self, x, y, training=None, istarget=None):
        """Compute the logits of target ids `y`, given source ids `x`, (N, T) each.

        With `istarget`, (N, T) bool, only those of the M true positions are computed.
        """
        memory = self.encode(x, training)
        dec = self.decode(shift_right(y), memory, self.padding_masks(x), training)  # (N, T, C)
        if istarget is not None:
            # tf: keras.ops has no operation whose output shape depends on values.
            dec = tf.boolean_mask(dec, istarget)  # (M, C)
        return self.to_logits(dec)  # (N, T, vocab), or (M, vocab)

    def padding_masks(self, ids):
        """Return True where ids are not `<PAD>`, (N, T) bool; with mask_from="none" everywhere.

        Returns None with mask_from="activations": `MultiheadAttention` then treats vectors that
        are all zeros as padding, as the 2017 code does.
        """
        if self.hp.mask_from == "activations":
            return None
        return ids != PAD if self.hp.mask_from == "ids" else ops.ones_like(ids, "bool")

    def encode(self, x, training=None):
        """Encode source ids: (N, T) -> (N, T, C)."""
        enc = self.enc_input(x, training=training)  # (N, T, C)
        masks = self.padding_masks(x)
        T = tf.shape(x)[1]
        all_positions = prepare_positions(self.enc_positions, T, T)
        for block, positions in zip(self.enc_blocks, all_positions, strict=True):
            enc = block(enc, masks, positions=positions, training=training)
        return self.enc_norm(enc) if self.enc_norm else enc

    def decode(self, decoder_inputs, memory, memory_masks=None, training=None):
        """Decode all tokens at once, as in training: (N, T) -> (N, T, C), for `to_logits`.

        `decoder_inputs` are target ids that start with `<S>`, `memory` what `encode` returned,
        (N, T_k, C), and `memory_masks` the `padding_masks` of the source ids, (N, T_k).
        """
        dec = self.dec_input(decoder_inputs, training=training)  # (N, T, C)
        masks = self.padding_masks(decoder_inputs)
        T = tf.shape(decoder_inputs)[1]
        all_positions = prepare_positions(self.dec_positions, T, T)
        for block, positions in zip(self.dec_blocks, all_positions, strict=True):
            dec = block(dec, memory, masks, memory_masks, positions=positions, training=training)
        return dec

    def to_logits(self, dec):
        """Compute logits from the decoder's output: (..., C) -> (..., vocab)."""
        dec = self.dec_norm(dec) if self.dec_norm else dec
        if not self.hp.tied_embeddings:
            return self.output_layer(dec)
        logits = self.dec_input.tokens.to_logits(dec)
        if self.output_bias is None:
            return logits
        return logits + ops.cast(self.output_bias, logits.dtype)

    def encode_memory(self, x):
        """Encode source ids (N, T), and project the memory once for all steps of a search.

        It is a list of `KeysValues`, one per decoder block, (N, h, T_k, C/h).
        """
        memory, masks = self.encode(x), self.padding_masks(x)
        return [
            block.vanilla_attention.project_keys_values(memory, masks) for block in self.dec_blocks
        ]

    def initial_cache(self, memory, beam=1):
        """Return the `DecoderCache` of N * beam hypotheses before their first token."""
        N = ops.shape(memory[0].K)[0] * beam
        return DecoderCache(
            input=self.dec_input.positions.initial_state(N),
            blocks=[block.self_attention.empty_keys_values(N) for block in self.dec_blocks],
        )

    def decode_step(self, ids, cache, memory):
        """Compute the logits of the next token; see `search.StepModel`."""
        t = ops.shape(cache.blocks[0].K)[2]
        masks = self.padding_masks(ids[:, None])  # (N * beam, 1)
        dec, state = self.dec_input.embed(ids[:, None], t, cache.input)  # (N * beam, 1, C)
        new_blocks = []
        all_positions = prepare_positions(self.dec_positions, 1, t + 1)
        blocks = zip(self.dec_blocks, cache.blocks, memory, all_positions, strict=True)
        for block, block_cache, block_memory, positions in blocks:
            dec, block_cache = block.decode_step(dec, block_cache, block_memory, masks, positions)
            new_blocks.append(block_cache)
        return self.to_logits(dec[:, 0]), DecoderCache(state, new_blocks)  # (N * beam, vocab)


def prepare_positions(layers, T_q, T_k):
    """Prepare the `Positions` of all blocks, or None, for so many queries and keys."""
    prepared = {layer: layer and layer.prepare(T_q, T_k) for layer in dict.fromkeys(layers)}
    return [prepared[layer] for layer in layers]


def make_model(hp, source_vocab, target_vocab):
    """Create the model that the hyperparameters describe."""
    dtype = "mixed_bfloat16" if hp.precision == "bfloat16" else "float32"
    return MODELS[hp.model].load()(hp, source_vocab, target_vocab, dtype=dtype)
