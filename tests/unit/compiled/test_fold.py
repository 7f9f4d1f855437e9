"""Means of whole numbers over more ranks than their type counts."""

import shutil
import subprocess

import pytest

from tests.helpers.launcher import ROOT

PROGRAM = """\
#include <stdio.h>
#include "_fold.h"

int main(void) {
    int8_t a[2] = {127, -128};
    uint8_t b[2] = {255, 7};
    int16_t c[1] = {-32768};
    psf_share(PSF_I8, 2, 128, a);
    psf_share(PSF_U8, 2, 256, b);
    psf_share(PSF_I16, 1, 32768, c);
    printf("%d %d %d %d %d", a[0], a[1], b[0], b[1], c[0]);
}
"""


def test_means_over_many_ranks_are_cut_towards_zero(tmp_path):
    compiler = shutil.which("cc") or pytest.skip("no C compiler: apt-get install gcc")
    (tmp_path / "fold.c").write_text(PROGRAM)
    command = [compiler, f"-I{ROOT / 'psframe' / 'compiled'}", "-w", "-O1", "fold.c", "-o", "fold", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.check_output([tmp_path / "fold"], text=True) == "0 -1 0 0 -1"
