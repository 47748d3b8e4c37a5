"""How to reach an engine that asks for TLS: names of files, never what is in them."""

from typing import Annotated

from msgspec import Meta, Struct

__all__ = ["Access"]


class Access(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `[access.ENGINE]` table. Where one fits an engine, TLS is spoken to it."""

    ca: Annotated[
        str,
        Meta(
            description="file with the certificates (PEM) that its own is checked against; empty: "
            "those of the system"
        ),
    ] = ""
    name: Annotated[
        str,
        Meta(
            description="name that its certificate must have; empty: the host of its address, "
            "such as 127.0.0.1"
        ),
    ] = ""
    certificate: Annotated[
        str, Meta(description="file with our own certificate (PEM), where it asks for one")
    ] = ""
    key: Annotated[
        str,
        Meta(
            description="file with the key of our certificate (PEM, without a passphrase), which "
            "nobody but its owner may read"
        ),
    ] = ""
    user: Annotated[str, Meta(description="user name, where it asks for a password (basic)")] = ""
    password_file: Annotated[
        str,
        Meta(
            description="file with the password in its first line, which nobody but its owner may "
            "read"
        ),
    ] = ""
