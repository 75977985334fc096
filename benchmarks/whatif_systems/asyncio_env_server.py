"""An asyncio server simulates for four connections in one event loop; the client learns while it waits."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket

from parts import meter, native, parameters, python

import hotloop

WHAT_IFS = {
    "simulate=2x": {"simulate": 0.5},
    "simulate=4x": {"simulate": 0.25},
    "learn=2x": {"learn": 0.5},
    "policy=2x": {"policy": 0.5},
}
LIMIT = "simulate"
LATENCY_S = 0.002
OBSERVATION = bytes(256)


def serve(listener: socket.socket, scale: float) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readexactly(4)
            await asyncio.sleep(LATENCY_S)
            with hotloop.profile("simulate"):
                python(1.2 * scale)
            writer.write(OBSERVATION)
            await writer.drain()

    async def forever() -> None:
        server = await asyncio.start_server(handle, sock=listener)
        await server.serve_forever()

    asyncio.run(forever())


def main() -> None:
    p = parameters(simulate=1, policy=1, learn=1, workers=4)
    n = int(p["workers"])
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    context = multiprocessing.get_context("fork")
    context.Process(target=serve, args=(listener, p["simulate"]), daemon=True).start()
    listener.close()
    loop = asyncio.new_event_loop()

    async def connect() -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        return [await asyncio.open_connection(*address) for _ in range(n)]

    envs = loop.run_until_complete(connect())

    async def step() -> list[bytes]:
        for _, writer in envs:
            writer.write(b"move")
        with hotloop.profile("learn"):  # on the batch before this one
            native(3.6 * p["learn"])
        return await asyncio.gather(*(reader.readexactly(len(OBSERVATION)) for reader, _ in envs))

    def cycle() -> float:
        loop.run_until_complete(step())
        with hotloop.profile("policy"):
            python(2 * p["policy"])
        hotloop.progress(env_steps=n)
        return n

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
