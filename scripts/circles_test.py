"""The self-test of scripts/circles: small trees that break one rule each, and the lines that must come of it."""

import sys
import tempfile
from pathlib import Path

# name: (files, the problems expected, each named by its start)
TREES = {
    "one direction is fine": (
        {"lib.rs": "mod a;\nmod b;\npub use a::A;", "a.rs": "use crate::b::B;\npub struct A(B);", "b.rs": "pub struct B;"},
        [],
    ),
    "two files that import each other": (
        {
            "lib.rs": "mod a;\nmod b;",
            "a.rs": "use crate::b::B;\npub struct A(B);",
            "b.rs": "pub struct B;\nuse super::a;\nfn f() { a::g() }",
        },
        [
            "circle of 2 files: crates/x/src/a.rs, crates/x/src/b.rs",
            "  crates/x/src/a.rs:1 -> crates/x/src/b.rs: B",
            "  crates/x/src/b.rs:2 -> crates/x/src/a.rs: a, g",
        ],
    ),
    "three files, nested braces, and a path in code": (
        {
            "lib.rs": "mod a;\nmod b;\nmod room;",
            "a.rs": "use {crate::{b::{self, B}, room}, std::fmt};\nstruct A(B);",
            "b.rs": "pub struct B;\nfn f() -> u8 {\n    crate::room::inner::depth()\n}",
            "room.rs": "pub mod inner;",
            "room/inner.rs": "pub fn depth() -> u8 { let a: super::super::a::A = todo!(); 1 }",
        },
        [
            "circle of 3 files: crates/x/src/a.rs, crates/x/src/b.rs, crates/x/src/room/inner.rs",
            "  crates/x/src/a.rs:1 -> crates/x/src/b.rs: B, b",
            "  crates/x/src/b.rs:3 -> crates/x/src/room/inner.rs: depth",
            "  crates/x/src/room/inner.rs:1 -> crates/x/src/a.rs: A",
        ],
    ),
    "a name re-exported by a table of contents leads to its file": (
        {
            "lib.rs": "mod a;\nmod room;\npub use room::*;",
            "a.rs": "pub struct A;\nfn f(_: crate::room::Deep, _: crate::Other) {}",
            "room/mod.rs": "mod deep;\nmod other;\npub use deep::Deep;\npub use other::*;",
            "room/deep.rs": "use crate::a::A;\npub struct Deep(A);",
            "room/other.rs": "pub struct Other;",
        },
        [
            "circle of 2 files: crates/x/src/a.rs, crates/x/src/room/deep.rs",
            "  crates/x/src/a.rs:2 -> crates/x/src/room/deep.rs: Deep",
            "  crates/x/src/room/deep.rs:1 -> crates/x/src/a.rs: A",
        ],
    ),
    "a parent with code of its own and its child": (
        {
            "main.rs": "mod jobs;\nfn main() { jobs::run() }",
            "jobs.rs": "mod change;\npub struct Filter;\npub fn run() { change::run(Filter) }",
            "jobs/change.rs": "use super::Filter;\npub fn run(_: Filter) {}",
        },
        [
            "circle of 2 files: crates/x/src/jobs/change.rs, crates/x/src/jobs.rs",
            "  crates/x/src/jobs/change.rs:1 -> crates/x/src/jobs.rs: Filter",
            "  crates/x/src/jobs.rs:3 -> crates/x/src/jobs/change.rs: run",
        ],
    ),
    "tests, comments and strings import nothing": (
        {
            "lib.rs": "mod a;\nmod b;",
            "a.rs": "use crate::b::B;\npub struct A(B);",
            "b.rs": "pub struct B; // crate::a::A\n/* use crate::a::A; /* nested */ */\n"
            'const T: &str = "crate::a::A";\nconst R: &str = r#"a " crate::a::A"#;\n'
            "#[cfg(test)]\nuse crate::a::A;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n#[cfg(test)]\nmod more;",
            "b/more.rs": "use crate::a::A;",
        },
        [],
    ),
    "a file that is too long": (
        {"lib.rs": "mod a;", "a.rs": "//\n" * 401},
        ["crates/x/src/a.rs: 401 lines, at most 400 are allowed: split it"],
    ),
}

SQL = (
    'const A: &str = "select 1";\nconst B: &str = "with the wind";\n'
    'fn f() { run("\\n  update job set x = 1"); run(r#"listen x"#); say("set DATABASE_URL") }\n'
    'const C: &str = include_str!("../sql/a.sql");'
)
SQL_PROBLEMS = [
    "crates/pitwheel/src/lib.rs:1: SQL outside `sql/` and `migrations/`: select 1",
    "crates/pitwheel/src/lib.rs:3: SQL outside `sql/` and `migrations/`: update job set x = 1",
    "crates/pitwheel/src/lib.rs:3: SQL outside `sql/` and `migrations/`: listen x",
]


def test(check):
    failed = 0
    trees = [(name, "x", files, expected) for name, (files, expected) in TREES.items()]
    trees.append(("SQL in the library", "pitwheel", {"lib.rs": SQL}, SQL_PROBLEMS))
    for name, crate, files, expected in trees:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for file, text in {"../Cargo.toml": "", **files}.items():
                path = root / "crates" / crate / "src" / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            found = check(root)
        if found != expected:
            failed += 1
            print(f"self-test failed: {name}\n  expected {expected}\n  found    {found}", file=sys.stderr)
    print(f"circles: self-test {'failed' if failed else 'passed'}, {len(trees)} trees")
    return 1 if failed else 0
