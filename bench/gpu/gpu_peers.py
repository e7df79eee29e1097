#!/usr/bin/env python3
"""What others do on a GPU with the tensors of gpu_bench: torch.topk, index_add_, zero_ and a copy; nvCOMP over the same pairs.

    gpu_peers.py [--json FILE] [--quick] [--rehearse]

Times are of CUDA graph replays where torch can capture the call, and of plain calls; medians with p10 and p90, inputs in turn from several
tensors past the L2. nvCOMP (nvidia-nvcomp-cu12 or -cu13 of the Python registry) allocates and waits in a call, so it has plain calls only.
It codes what we code, indices as gaps and values apart, in its own containers; what it makes is decoded and compared. The file is written
after every row. --rehearse: small tensors on the CPU, which measures nothing. Exit 77 without torch or without a GPU.
"""
import argparse
import json
import statistics
import sys
import time

SHAPES = [("25.6e6, 1 %", 25_600_000, 256_000), ("36,864, 1 %", 36_864, 368), ("25.6e6, 10 %", 25_600_000, 2_560_000), ("25.6e6, 0.1 %", 25_600_000, 25_600),
          ("1e8, 1 %", 100_000_000, 1_000_000), ("1e9, 0.1 %", 1_000_000_000, 1_000_000)]
MERGES = [("a frame of 256e3, added", 1), ("8 frames of 256e3, added", 8), ("64 frames of 256e3, added", 64)]
# Algorithm, and what it knows of the elements: it looks for structure in words of that type.
NVCOMP = {"indices": [("ANS", None), ("Bitcomp", "<u4"), ("Cascaded", "<u4")], "values": [("ANS", None), ("Bitcomp", "<u4"), ("Zstd", None)]}


def spread(times):
    times = sorted(times)

    def at(share):
        return times[round(share * (len(times) - 1))]

    return {"median": statistics.median(times), "p10": at(0.1), "p90": at(0.9), "n": len(times)}


def top_k(gradient, k):
    """Top-k as sparsifiers in training code compute it (GRACE's, for example)."""
    import torch

    _, indices = torch.topk(gradient.abs(), k, sorted=False)
    return torch.gather(gradient, 0, indices), indices


def verified(gradient, k, values, indices):
    import torch

    if not torch.equal(gradient[indices], values) or indices.unique().numel() != k:
        return False
    return int((gradient.abs() > values.abs().min()).sum()) < k


class Bench:
    def __init__(self, args):
        import torch

        self.torch, self.args = torch, args
        self.device = "cpu" if args.rehearse else "cuda"
        self.repeats = 3 if args.rehearse else 20 if args.quick else 60
        self.generator = torch.Generator(self.device).manual_seed(1)
        self.report = {"benchmark": "gpu_peers", "device": "the CPU, a rehearsal" if args.rehearse else torch.cuda.get_device_name(0), "torch": torch.__version__,
                       "rehearsal": args.rehearse, "rows": []}

    def scaled(self, n):
        return max(1, n // 2000) if self.args.rehearse else n

    def gradient(self, d):
        g = self.torch.empty(d, device=self.device).exponential_(1000.0, generator=self.generator)
        return g * (self.torch.randint(0, 2, (d,), device=self.device, generator=self.generator, dtype=self.torch.int8) * 2 - 1)

    def sets(self, size):
        return max(2, min(16, 2 * 60_000_000 // max(1, size) + 1))

    def times(self, calls):
        """Microseconds of each, between events, one call after the other without a wait."""
        if self.args.rehearse:
            out = []
            for i in range(self.repeats):
                begin = time.perf_counter()
                calls[i % len(calls)]()
                out.append(1e6 * (time.perf_counter() - begin))
            return spread(out)
        cuda = self.torch.cuda
        for call in calls[:3]:
            call()
        marks = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(self.repeats)]
        for i, (begin, end) in enumerate(marks):
            begin.record()
            calls[i % len(calls)]()
            end.record()
        cuda.synchronize()
        return spread([1e3 * begin.elapsed_time(end) for begin, end in marks])

    def captured(self, call):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            call()
        return graph.replay

    def measure(self, row, calls):
        row["stream_us"] = self.times(calls)
        if self.args.rehearse:
            return
        try:
            row["graph_us"] = self.times([self.captured(call) for call in calls])
        except RuntimeError as error:  # some sizes take a path of torch's that waits
            row["graph_missing"] = str(error).splitlines()[0]

    def row(self, group, name, make, **about):
        row = {"group": group, "name": name, **about}
        try:
            make(row)
        except Exception as error:  # one that fails leaves the others
            row["failed"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        self.report["rows"].append(row)
        if not self.args.rehearse:
            self.torch.cuda.empty_cache()
        shown = row.get("graph_us") or row.get("stream_us") or {}
        more = f", {row['bytes']:,} bytes, back in {row['decode_us']['median']:.1f} us" if "decode_us" in row else ""
        print(f"{group:12} {name:34} " + (row["failed"] if "failed" in row else f"{shown['median']:10.1f} us{more}"), flush=True)
        if self.args.json:
            with open(self.args.json, "w", encoding="utf-8") as file:
                json.dump(self.report, file, indent=1)

    # ---- torch ------------------------------------------------------------------------------------------

    def topk(self, row):
        d, k = row["elements"], row["kept"]
        gradients = [self.gradient(d) for _ in range(self.sets(4 * d))]
        values, indices = top_k(gradients[0], k)
        if not verified(gradients[0], k, values, indices):
            raise RuntimeError("torch.topk left out a larger value")
        row["verified"] = "none left out is larger"
        del values, indices
        self.measure(row, [lambda g=g: top_k(g, k) for g in gradients])

    def merge(self, row):
        """k lists of distinct indices into one dense tensor, one index_add_ after the other."""
        d, k, frames = row["elements"], row["kept"] // row["frames"], row["frames"]
        lists = [(self.torch.randperm(d, device=self.device, generator=self.generator)[:k].sort().values, self.gradient(k)) for _ in range(frames)]
        dense = [self.gradient(d) for _ in range(self.sets(4 * d))]

        def add(out):
            for indices, values in lists:
                out.index_add_(0, indices, values)

        self.measure(row, [lambda out=out: add(out) for out in dense])

    def plain(self, row):
        d = row["elements"]
        tensors = [self.gradient(d) for _ in range(self.sets(4 * d))]
        other = self.torch.empty_like(tensors[0])
        calls = {"zero_": lambda t: t.zero_(), "copy_": lambda t: other.copy_(t), "max (a read)": lambda t: t.max()}
        call = calls[row["name"]]
        self.measure(row, [lambda t=t: call(t) for t in tensors])

    # ---- nvCOMP -----------------------------------------------------------------------------------------

    def nvcomp_rows(self):
        try:
            from nvidia import nvcomp
        except Exception as error:  # its shared library asks for CUDA's when it loads
            print(f"nvCOMP is not here: {error}")
            self.report["nvcomp"] = f"not here: {error}"
            return
        self.report["nvcomp"] = nvcomp.__version__
        d, k = self.scaled(25_600_000), self.scaled(256_000)
        values, indices = top_k(self.gradient(d), k)
        indices, order = indices.sort()
        gaps = self.torch.diff(indices, prepend=indices.new_tensor([-1])).to(self.torch.int32) - 1
        streams = {"indices": gaps.contiguous(), "values": values[order].contiguous()}
        for stream, algorithms in NVCOMP.items():
            data = streams[stream].view(self.torch.uint8)
            for algorithm, dtype in algorithms:
                self.row("nvCOMP", f"{algorithm}, {stream} of 256e3 pairs", lambda row, a=algorithm, t=dtype, x=data: self.coded(nvcomp, row, a, t, x),
                         elements=k, raw_bytes=data.numel())

    def coded(self, nvcomp, row, algorithm, dtype, data):
        stream = self.torch.cuda.current_stream().cuda_stream
        options = {"data_type": dtype} if dtype else {}
        codec = nvcomp.Codec(algorithm=algorithm, cuda_stream=stream, **options)
        source = nvcomp.as_array(data)
        made = codec.encode(source)
        self.torch.cuda.synchronize()
        back = codec.decode(made)
        self.torch.cuda.synchronize()
        if not self.torch.equal(self.torch.as_tensor(back, device="cuda").flatten().view(self.torch.uint8), data):
            raise RuntimeError("what it decodes is not what it was given")
        row.update(verified="decoded and compared", bytes=int(made.size * made.item_size))
        row["stream_us"] = self.times([lambda: codec.encode(source)])
        row["decode_us"] = self.times([lambda: codec.decode(made)])

    def run(self):
        for name, d, k in SHAPES:
            if not (self.args.quick and d > 100_000_000):
                self.row("torch", name, self.topk, elements=self.scaled(d), kept=self.scaled(k), plan="torch.topk(|g|) and gather")
        d, k = self.scaled(25_600_000), self.scaled(256_000)
        for name, frames in MERGES:
            self.row("index_add_", name, self.merge, elements=d, kept=k * frames, frames=frames)
        for name in ("zero_", "copy_", "max (a read)"):
            self.row("plain", name, self.plain, elements=d)
        if not self.args.rehearse:
            self.nvcomp_rows()
        return 1 if any("failed" in row for row in self.report["rows"]) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: no torch ({error})")
        return 77
    if not args.rehearse and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return 77
    return Bench(args).run()


if __name__ == "__main__":
    sys.exit(main())
