"""The golden vectors in the repository are what their program prints today."""
import io
import os
import sys
import unittest

sys.dont_write_bytecode = True
VECTORS = os.path.join(os.environ["SHEAF_SOURCE"], "tests", "vectors")
sys.path.insert(0, VECTORS)
import lattice  # noqa: E402


class Vectors(unittest.TestCase):
    def test_the_committed_file_is_the_programs_output(self):
        out = io.StringIO()
        lattice.main(out)
        with open(os.path.join(VECTORS, "lattice.txt"), encoding="ascii") as file:
            self.assertEqual(file.read(), out.getvalue())


if __name__ == "__main__":
    unittest.main()
