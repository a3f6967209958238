"""Show where the time of a training step goes, by kinds of operations.

    REAL_TEXT=DIR python benchmarks/profile_step.py tiny --precision bfloat16

The batches are those of `time_train.py`. TensorFlow's profiler records when each operation runs.
Two operations may run at the same time; then each has half of that time. "No operation" is the
time in which none runs: starting operations, and waiting for them.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path

from harness import describe_machine
from step_tensorflow import load_batches, make_steps
from time_train import SIZES, prepare_size, write_batches

KINDS = {
    "matrix products": "MatMul BatchMatMulV2 BatchMatMulV3 _MklMatMul _MklBatchMatMulV2"
    " _MklFusedMatMul _MklNativeFusedMatMul _FusedMatMul _MklFusedBatchMatMulV2",
    "optimizer": "ResourceApplyAdam AssignAddVariableOp AssignVariableOp L2Loss",
    "embeddings: look-up and gradient": "ResourceGather GatherV2 UnsortedSegmentSum ScatterNd"
    " TensorScatterAdd TensorScatterSub SparseSegmentSum Unique Where GatherNd",
    "random numbers": "StatelessRandomUniformFullIntV2 StatelessRandomUniformIntV2"
    " StatelessRandomUniformFullInt StatelessRandomUniformInt Bitcast",
    "softmax": "Softmax _MklSoftmax LogSoftmax SparseSoftmaxCrossEntropyWithLogits ArgMax",
    "sums and means": "Sum Mean Max Min BiasAddGrad AddN _MklBiasAddGrad",
    "casts": "Cast _MklCast",
    "copies: transpose, slice, concatenate": "Transpose _MklTranspose ConcatV2 Slice StridedSlice"
    " StridedSliceGrad Pad Pack Tile BroadcastTo Split SplitV _MklConcatV2",
}
KIND_OF_OP = {op: kind for kind, ops in KINDS.items() for op in ops.split()}
ELEMENT_WISE = "element-wise: dropout, normalization, residual, bias, ReLU, masks"


def operations(folder):
    """Read a profile; returns (start, end, type) of each operation, in seconds."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = folder.glob("**/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    found = []
    for plane in (plane for plane in space.planes if plane.name == "/host:CPU"):
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                _, colon, op = name.rpartition(":")
                if colon and "::" not in name and op.isidentifier() and event.duration_ps:
                    start = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                    found.append((start, start + event.duration_ps / 1e12, op))
    return found


def time_by_type(operations) -> dict:
    """Divide the time in which operations run among their types; returns seconds by type."""
    edges = [(start, 1, op) for start, _, op in operations]
    edges += [(end, -1, op) for _, end, op in operations]
    seconds, running, last = defaultdict(float), defaultdict(int), None
    for now, change, op in sorted(edges):
        if count := sum(running.values()):
            for name, times in running.items():
                seconds[name] += (now - last) * times / count
        running[op] += change
        if not running[op]:
            del running[op]
        last = now
    return dict(seconds)


def main():
    """Profile the size that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--top", type=int, default=0, help="also print so many types of operations")
    args = parser.parse_args()
    flags, folder, count = prepare_size(args.size, precision=args.precision)

    import tensorflow as tf

    path, _, _, count = write_batches(flags, min(count, 10), folder)
    timed_fn = make_steps(*load_batches(path, json.dumps(flags)))
    for _ in range(2):
        timed_fn()
    with tempfile.TemporaryDirectory() as profile:
        with tf.profiler.experimental.Profile(profile):
            timed_fn()
        found = operations(Path(profile))

    wall = max(end for _, end, _ in found) - min(start for start, _, _ in found)
    by_type = time_by_type(found)
    by_kind = defaultdict(float)
    for op, seconds in by_type.items():
        by_kind[KIND_OF_OP.get(op, ELEMENT_WISE)] += seconds
    by_kind["no operation"] = wall - sum(by_kind.values())
    print(f"{args.size}, {args.precision}, {describe_machine()}, {1000 * wall / count:.0f} ms")
    print("| kind | ms per step | share |\n|---|---|---|")
    for kind, seconds in sorted(by_kind.items(), key=lambda item: -item[1]):
        print(f"| {kind} | {1000 * seconds / count:.1f} | {seconds / wall:.1%} |")
    for op, seconds in sorted(by_type.items(), key=lambda item: -item[1])[: args.top]:
        print(f"{op:40} {1000 * seconds / count:7.1f} ms  {KIND_OF_OP.get(op, '-')}")


if __name__ == "__main__":
    main()
