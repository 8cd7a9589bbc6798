# SPDX-License-Identifier: Apache-2.0
"""Tests each rule of tools/lint/check_rooms.py with a small tree that breaks it, and one that only seems to."""
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools/lint"))
sys.dont_write_bytecode = True
from check_rooms import ROOMS_FILE, Rooms, Tree, below, faults_of  # noqa: E402

HEADER = "#pragma once\n"
ROOMS = Rooms(ROOMS_FILE)


class CheckRooms(unittest.TestCase):
    def faults(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            for room in {ROOMS.room_of(path) for path in files} & ROOMS.may_include.keys():
                if f"stepforge/{room}/README.md" not in files:
                    (root / "stepforge" / room / "README.md").write_text(ROOMS.readme_line(room) + "\n")
            return [f"{path}:{line}: {message}" for path, line, message in faults_of(Tree(root, below(root), ROOMS))]

    def refused(self, files, *words):
        faults = self.faults(files)
        self.assertEqual(len(faults), 1, faults)
        for word in words:
            self.assertIn(word, faults[0])

    def accepted(self, files):
        self.assertEqual(self.faults(files), [])

    def test_a_room_includes_only_what_it_may(self):
        self.refused({"stepforge/text/a.cpp": '\n#include "stepforge/data/b.h"\n', "stepforge/data/b.h": HEADER}, "stepforge/text/a.cpp:2", "room text", "data/b.h")
        self.accepted({"stepforge/data/a.cpp": '#include "stepforge/text/b.h"\n', "stepforge/text/b.h": HEADER})

    def test_the_rooms_file_has_no_cycle_and_keeps_torch_below_the_line(self):
        def faults(*rooms):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "rooms.json"
                path.write_text(json.dumps({"rooms": [dict(zip(("name", "library", "may_include"), room)) for room in rooms]}))
                return [fault[2] for fault in faults_of(Tree(Path(folder), [], Rooms(path)))]

        self.assertEqual(faults(("a", "core", []), ("b", "torch", ["a"])), [])
        self.assertIn("does not come before it", faults(("a", "core", ["b"]), ("b", "core", []))[0])
        self.assertIn("is torch-free but may include b", faults(("b", "torch", []), ("a", "core", ["b"]))[0])

    def test_a_readme_lists_what_its_room_may_include(self):
        self.refused({"stepforge/config/a.cpp": "\n", "stepforge/config/README.md": "May include: `data`.\n"}, "May include: `base`.")

    def test_the_map_is_the_table_of_the_rooms_file(self):
        table = ROOMS.table()
        for room in ROOMS.may_include:
            self.assertIn(f"\n| `{room}` | ", table)
        self.accepted({"docs/architecture.md": f"# Map\n\n{table}\nAfter it.\n"})
        missing = "".join(line for line in table.splitlines(True) if "`layout`" not in line)
        self.refused({"docs/architecture.md": f"# Map\n\n{missing}\nAfter it.\n"}, "docs/architecture.md:3", "--write")
        self.refused({"docs/architecture.md": "# Map\n"}, "docs/architecture.md:1", "--write")

    def test_every_folder_is_a_room(self):
        self.refused({"stepforge/utils/a.cpp": "\n"}, "utils is not a room")

    def test_rooms_above_the_line_include_no_torch_header(self):
        self.refused({"stepforge/base/a.cpp": "#include <torch/torch.h>\n"}, "stepforge/base/a.cpp:1", "torch/torch.h")
        self.refused({"stepforge/plan/job.cpp": "#include <ATen/ATen.h>\n"}, "ATen/ATen.h")
        self.refused({"stepforge/app/main.cpp": '#include "tests/a.h"\n', "tests/a.h": HEADER + '#include "tests/b.h"\n', "tests/b.h": HEADER + "#include <c10/a.h>\n"},
                     "stepforge/app/main.cpp", "tests/a.h -> tests/b.h -> c10/a.h")
        self.accepted({"stepforge/nn/a.cpp": "#include <torch/torch.h>\n", "stepforge/app/torch/a.cpp": "#include <ATen/ATen.h>\n"})

    def test_formatting_libraries_stay_out_of_headers(self):
        self.refused({"stepforge/base/a.h": HEADER + "#include <fmt/core.h>\n"}, "stepforge/base/a.h:2", "fmt/core.h")
        self.refused({"stepforge/config/a.h": HEADER + "#include <toml++/toml.h>\n"}, "toml++/toml.h")
        self.accepted({"stepforge/base/a.cpp": "#include <fmt/core.h>\n"})

    def test_a_header_is_guarded(self):
        self.refused({"stepforge/base/a.h": "int f();\n"}, "#pragma once")

    def test_there_is_no_mutable_static_state(self):
        for line in [
            "int counter = 0;",
            "std::mutex lock;",
            "static std::vector<int> seen{1, 2};",
            "const char* name = \"x\";",
            "inline bool verbose{};",
            "namespace a { namespace { std::string text; } }",
            "int f() { static int calls = 0; return ++calls; }",
            "int f() { auto g = [] { static int calls; return ++calls; }; return g(); }",
            "int f() { thread_local int calls = 0; return ++calls; }",
            "struct S { static int count; };",
            "struct S { inline static std::map<int, int> all{}; };",
            "struct S { int a; } shared;",
        ]:
            with self.subTest(line):
                self.refused({"stepforge/base/a.cpp": "\n" + line + "\n"}, "stepforge/base/a.cpp:2", "mutable static state")

    def test_constants_functions_and_locals_are_not_static_state(self):
        self.accepted({"stepforge/base/a.cpp": """
            #define MANY \\
              int counter;
            constexpr int a[] = {1, 2};
            const std::string b = "int c;";
            const char* const d = "static int e;";  // int f;
            /* int g; */
            using G = int;
            template <typename T> T h(T x) { return x; }
            template <typename T> struct I { T x; static int j(int a = 0); };
            enum class K { l, m };
            extern "C" int n(const char* o) { static const int p = 1; static constexpr char q[] = "r"; return p; }
            S::S() : t_{1}, u_(2) { for (int v = 0; v < 2; ++v) { int w; } }
            S::~S() = default;
            const auto x = [](int y) { int z = y; return z; };
            bool operator==(const S& a, const S& b) { return true; }
            auto character = '{'; """.replace("auto character", "const auto character")})

    def test_models_know_no_rank(self):
        self.refused({"stepforge/nn/llama/a.cpp": "\nint f(int rank) { return 0; }\n"}, "stepforge/nn/llama/a.cpp:2", "`rank`")
        self.refused({"stepforge/nn/a.cpp": "void f(ProcessGroup& g);\n"}, "ProcessGroup")
        self.accepted({"stepforge/nn/a.cpp": "// Any rank runs this.\nint ranking();\n", "stepforge/train/a.cpp": "int f(int rank);\n"})

    def test_no_file_is_too_long(self):
        self.refused({"stepforge/base/a.cpp": "\n" * 801}, "801 lines")
        self.accepted({"stepforge/base/a.cpp": "\n" * 800})

    def test_a_room_has_a_short_readme(self):
        self.refused({"stepforge/base/a.cpp": "\n", "stepforge/base/README.md": "\n" * 81}, "over 80 lines")
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "stepforge/base").mkdir(parents=True)
            (Path(folder) / "stepforge/base/a.cpp").write_text("\n")
            faults = faults_of(Tree(Path(folder), below(Path(folder)), ROOMS))
            self.assertEqual([fault[0] for fault in faults], ["stepforge/base/README.md"])

    def test_there_are_no_machine_paths_and_no_todo_notes(self):
        self.refused({"docs/a.md": "see /" + "home/me/x\n"}, "docs/a.md:1", "an absolute path of a machine")
        self.refused({"scripts/a.sh": "# TO" + "DO: more\n"}, "a to-do note")
        self.accepted({"docs/a.md": "see https://example.org/work/x and src/home/y\n"})

    def test_paths_in_documents_exist(self):
        self.refused({"docs/a.md": "See `data/gone.h`.\n"}, "docs/a.md:1", "`data/gone.h`, which does not exist")
        self.refused({"docs/a.md": "\n[b](b.md)\n"}, "docs/a.md:2", "links to b.md")
        self.accepted({
            "docs/a.md": "`text/b.h`, `tests/c.sh`, `c.sh`, [b](b.md#part), [site](https://example.org/x.md)\n",
            "docs/b.md": "", "stepforge/text/b.h": HEADER, "tests/c.sh": ""})  # fmt: skip


if __name__ == "__main__":
    unittest.main()
