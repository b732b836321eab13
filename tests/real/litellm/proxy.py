"""Runs the LiteLLM proxy as its own command does, after one repair.

LiteLLM 1.106.12 replaces the ORM's engine through the attribute `_Prisma__engine`, the name it had in older releases of
Prisma Client Python; 0.15.0 keeps it in `_internal_engine`. Without the alias every request fails.
"""

import sys

from prisma import _base_client

_base_client.BasePrisma._Prisma__engine = property(  # noqa: SLF001
    lambda client: client._internal_engine,  # noqa: SLF001
    lambda client, engine: setattr(client, "_internal_engine", engine),
)

from litellm import run_server  # noqa: E402

sys.argv[0] = "litellm"
sys.exit(run_server())
