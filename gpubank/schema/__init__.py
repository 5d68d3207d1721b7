"""One source, many forms: the models of `gpubank.domain` as CRDs, JSON Schema, reference pages, admission policies.

    domain models ──▶ manifests/crds/*.yaml            what the API server enforces
                  ──▶ manifests/base/admission/*.yaml  what queues admit, and who approves leases
                  ──▶ docs/reference/*.md, *.json      what people and editors read

Everything here is rendered; `gpubank schema write` writes it and a test compares.
"""

from gpubank.schema.admission import admission_policies
from gpubank.schema.crd import crd, crds
from gpubank.schema.files import generated_files, write
from gpubank.schema.kinds import KINDS, Kind, Scope, kind_named
from gpubank.schema.leases import lease_policies
from gpubank.schema.priority import priority_policies
from gpubank.schema.structural import json_schema

__all__ = [
    "KINDS",
    "Kind",
    "Scope",
    "admission_policies",
    "crd",
    "crds",
    "generated_files",
    "json_schema",
    "kind_named",
    "lease_policies",
    "priority_policies",
    "write",
]
