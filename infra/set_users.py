"""Gives the broker each role's password and rights, as its administrator.

    set_users.py HOST:PORT ADMIN_FOLDER PASSWORDS_FOLDER ACLS_FILE

ADMIN_FOLDER has admin.pem and ca.pem. PASSWORDS_FOLDER has a folder with a file `password` for each user. ACLS_FILE is
what `rollog topics acls --format json` prints; its principals are the users. The broker gets a password salted and
iterated, never as it is. Rights that are there already stay as they are.
"""  # noqa: INP001

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

iterations = 8192


def main(address: str, admin_folder: str, passwords_folder: str, acls_file: str) -> int:
    """Set everything. Returns 1 where the broker refused something, and says what and why."""
    entries: list[dict[str, str]] = json.loads(Path(acls_file).read_text())
    users = sorted({entry["principal"].removeprefix("User:") for entry in entries})
    certificate = Path(admin_folder) / "admin.pem"
    admin = KafkaAdminClient(
        bootstrap_servers=address,
        security_protocol="SSL",
        ssl_cafile=str(Path(admin_folder) / "ca.pem"),
        ssl_certfile=str(certificate),
        ssl_keyfile=str(certificate),
    )
    try:
        credentials = [credential(user, Path(passwords_folder) / user / "password") for user in users]
        answers = admin.alter_user_scram_credentials(credentials)
        problems = [f"the password of {user}: {problem}" for user, problem in answers.items() if problem]
        refused = admin.create_acls([acl(entry) for entry in entries])["failed"]
        problems += [f"a right: {one}" for one in refused]
    finally:
        admin.close()
    for problem in problems:
        print(f"set-users: the broker refused {problem}", file=sys.stderr)  # noqa: T201
    return 1 if problems else 0


def credential(user: str, password: Path) -> Any:
    """A user's password as the broker keeps it."""
    return UserScramCredentialUpsertion(
        user, ScramMechanism.SCRAM_SHA_512, password.read_bytes(), iterations=iterations
    )


def acl(entry: dict[str, str]) -> Any:
    """One right as the client of the broker's administrator has it."""
    return ACL(
        principal=entry["principal"],
        host=entry["host"],
        operation=ACLOperation[entry["operation"]],
        permission_type=ACLPermissionType[entry["permission_type"]],
        resource_pattern=ResourcePattern(
            ResourceType[entry["resource_type"]],
            entry["resource_name"],
            ACLResourcePatternType[entry["pattern_type"]],
        ),
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
