"""Snapshots of node metadata on their way from the control plane to the nodes.

    decide.attribution ─▶ body.encode ─▶ seal.Sealer (Ed25519) ─▶ service.MetadataService (gRPC, mTLS) ─▶ node
                                                                  node: seal.Opener ─▶ body.decode

The node keeps the sealed bytes as they came and checks them again whenever it loads them.
"""
