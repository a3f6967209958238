"""Measure how many requests serve.py answers, and how fast.

    python benchmarks/time_serve.py test.de --logdir logdir

Clients send one sentence after the other, each when the answer to the one before has come.
"translation" asks for the text alone, as clients of LibreTranslate do; "page" also for attention
and probabilities. In the last row, 600 clients send a sentence each at the same moment.
"""

import argparse
import asyncio
import itertools
import statistics
import subprocess
import sys
import time
from collections import Counter

import aiohttp
from harness import describe_machine, script_command

CLIENTS = (1, 8, 64)
BURST_CLIENTS = 600


async def post(session, fields):
    """Send a request; returns its status and the seconds that it took."""
    start = time.perf_counter()
    async with session.post("/translate", json=fields) as response:
        await response.read()
        return response.status, time.perf_counter() - start


async def run_clients(session, requests, num_clients, seconds) -> list:
    """Let clients send requests for some time; returns the results of `post`."""
    results, deadline = [], time.perf_counter() + seconds

    async def client():
        while time.perf_counter() < deadline:
            results.append(await post(session, next(requests)))

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return results


def print_row(kind, num_clients, results, seconds):
    """Print the latencies of the requests that were answered."""
    answered = [latency for status, latency in results if status == 200]
    cuts = statistics.quantiles(answered, n=100)
    statuses = Counter(status for status, _ in results)
    refused = sum(count for status, count in statuses.items() if status != 200)
    print(
        f"| {kind} | {num_clients} | {len(answered) / seconds:.1f} | {1000 * cuts[49]:.0f} ms |"
        f" {1000 * cuts[98]:.0f} ms | {refused} |",
        flush=True,
    )


async def measure(address, sentences, source, target, seconds):
    """Print a table of all numbers of clients."""
    print("| request | clients | requests per second | p50 | p99 | answered with 503 |")
    print("|---|---|---|---|---|---|")
    kinds = dict(
        translation=[dict(q=text, source=source, target=target) for text in sentences],
        page=[dict(text=text) for text in sentences],
    )
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(None)
    async with aiohttp.ClientSession(address, connector=connector, timeout=timeout) as session:
        for kind, requests in kinds.items():
            endless = itertools.cycle(requests)
            await run_clients(session, endless, 8, seconds=2)  # the first batches are slower
            for num_clients in CLIENTS:
                start = time.perf_counter()
                results = await run_clients(session, endless, num_clients, seconds)
                print_row(kind, num_clients, results, time.perf_counter() - start)
        start = time.perf_counter()
        burst = [post(session, next(endless)) for _ in range(BURST_CLIENTS)]
        results = await asyncio.gather(*burst)
        print_row("page, at once", BURST_CLIENTS, results, time.perf_counter() - start)
        print(f"Then, one request: {await post(session, next(endless))}")


def main():
    """Start the server, and measure it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("text", help="sentences to translate, one per line")
    parser.add_argument("--logdir", default="logdir")
    parser.add_argument("--source_lang", default="de")
    parser.add_argument("--target_lang", default="en")
    parser.add_argument("--seconds", type=float, default=20, help="for each number of clients")
    args, more = parser.parse_known_args()
    with open(args.text, encoding="utf-8") as file:
        sentences = [line.strip() for line in file if line.strip()]
    print(describe_machine())
    command = [*script_command("serve.py", dict(logdir=args.logdir, port=0)), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().split()
        if not address:
            sys.exit(server.wait())
        try:
            languages = args.source_lang, args.target_lang
            asyncio.run(measure(address[0], sentences, *languages, args.seconds))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
