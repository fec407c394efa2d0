"""What a follow-up turn costs as its history grows, and how long a request holds up the server.

    python benchmarks/history_cost.py [--longest 131072]

The server runs under uvicorn in a process of its own, on `transport: generate` with a local tokenizer, in front of an
engine that answers at once; an agent runs tool rounds of about 350 tokens through it. Spliced and rendered whole, side
by side in one run. CPU time is the server's, from /proc. The stall is how long `GET /`, asked for every few
milliseconds from a third process, took at worst during the turn, less what it takes on an idle server. Linux only.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing as mp
import socket
import statistics
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import orjson
import uvicorn
from omegaconf import OmegaConf

from nemo_gym.http_pool import HTTPPool
from nemo_gym.server_client import ServerClient
from sglang_model.app import SGLangModel, SGLangModelConfig
from sglang_model.testing.tokenizer import builtin_tokenizer
from sglang_model.testing.tokenizer_folder import write_tokenizer_folder

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
RESULT = "The quick brown fox jumps over the lazy dog near the river bank while it rains. " * 16
CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
SAMPLES = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)


class InstantEngine(httpx.AsyncBaseTransport):
    """Samples the same tool call for every prompt, as `/generate` answers it."""

    def __init__(self) -> None:
        self.tokenizer = builtin_tokenizer()
        self.ids = self.tokenizer.encode(CALL)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        if request.url.path == "/tokenize":
            return httpx.Response(
                200, json={"tokens": self.tokenizer.encode(orjson.loads(content)["prompt"])}
            )
        meta = {
            "finish_reason": {"type": "stop", "matched": self.ids[-1]},
            # Counted without parsing: the engine is not what is measured.
            "prompt_tokens": content.partition(b"]")[0].count(b",") + 1,
            "completion_tokens": len(self.ids),
            "output_token_logprobs": [[-0.5, token_id, None] for token_id in self.ids],
        }
        return httpx.Response(200, json={"text": "", "output_ids": self.ids, "meta_info": meta})


def serve(folder: Path, port: int, *, splice: bool) -> None:
    config = SGLangModelConfig(
        name="bench",
        host="127.0.0.1",
        port=port,
        entrypoint="app.py",
        base_url="http://engine",
        api_key="x",
        model="m",
        return_token_id_information=True,
        uses_reasoning_parser=True,
        transport="generate",
        context_length=1_000_000,
        sglang_tokenizer=str(folder),
        sglang_splice_history=splice,
    )
    client = ServerClient(head_server_config=None, global_config_dict=OmegaConf.create({}))
    server = SGLangModel(config=config, server_client=client, http_pool=HTTPPool(transport=InstantEngine()))
    uvicorn.run(server.setup_webserver(), host="127.0.0.1", port=port, log_level="error")


def probe(port: int, pipe: Connection) -> None:
    """Asks GET / again and again; answers each message on the pipe with the worst time since the last one, in ms."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    worst = 0.0
    while True:
        if pipe.poll():
            if pipe.recv() is None:
                return
            pipe.send(worst)
            worst = 0.0
        before = time.perf_counter()
        connection.request("GET", "/")
        connection.getresponse().read()
        worst = max(worst, (time.perf_counter() - before) * 1000)
        time.sleep(0.002)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads, in nanoseconds: a tick of /proc/<pid>/stat is longer than a turn."""
    return (
        sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    )


def rollout(folder: Path, longest: int, *, splice: bool) -> dict[int, tuple[float, float]]:
    """(CPU ms, stall ms) of the follow-up turns around each sample point: means of the turns up to the next one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = mp.Process(target=serve, args=(folder, port), kwargs={"splice": splice}, daemon=True)
    server.start()
    ours, theirs = mp.Pipe()
    watcher = mp.Process(target=probe, args=(port, theirs), daemon=True)
    seen: dict[int, list[tuple[float, float]]] = {}
    messages: list[dict[str, object]] = [{"role": "user", "content": "Look around, please."}]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
        _wait_for(client)
        watcher.start()
        time.sleep(0.5)
        idle = _worst(ours)
        tokens = 0
        while tokens < longest:
            body = orjson.dumps({"messages": messages, "tools": [TOOL]})
            cpu = cpu_seconds(server.pid or 0)
            message = client.post("/v1/chat/completions", content=body).json()["choices"][0]["message"]
            cpu = cpu_seconds(server.pid or 0) - cpu
            tokens = len(message["prompt_token_ids"])
            sample = max((s for s in SAMPLES if s <= tokens), default=0)
            seen.setdefault(sample, []).append((cpu * 1000, max(0.0, _worst(ours) - idle)))
            reply = {key: message[key] for key in ("role", "content", "tool_calls")}
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": RESULT}
            messages += [reply, result]
    ours.send(None)
    server.terminate()
    return {
        sample: (statistics.mean(c for c, _ in turns), max(s for _, s in turns))
        for sample, turns in seen.items()
    }


def _worst(pipe: Connection) -> float:
    pipe.send("worst")
    return float(pipe.recv())


def _wait_for(client: httpx.Client) -> None:
    while True:
        with suppress(httpx.TransportError):
            client.get("/")
            return
        time.sleep(0.1)


def main(longest: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write_tokenizer_folder(Path(name))
        spliced = rollout(folder, longest, splice=True)
        whole = rollout(folder, longest, splice=False)
    print("| history, tokens, from | spliced: CPU ms per turn | rendered whole | ratio | worst stall, ms |")
    print("| --: | --: | --: | --: | --: |")
    for sample in filter(None, spliced):
        (cpu, stall), (whole_cpu, whole_stall) = spliced[sample], whole[sample]
        print(
            f"| {sample} | {cpu:.1f} | {whole_cpu:.1f} | {whole_cpu / cpu:.1f} | {stall:.1f} / {whole_stall:.1f} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--longest", type=int, default=131_072, help="tokens at which a rollout ends")
    main(parser.parse_args().longest)
