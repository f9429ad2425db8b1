"""What a policy version is, and how it is stored: tensors with one digest, a manifest, and shards of bounded size.

| module | what is in it |
| --- | --- |
| tensors.py | the tensor table, and how an engine hands its tensors over, one after another |
| safetensors.py | headers of safetensors files, written byte for byte |
| identity.py | the content digest: of the tensors, whatever form they are stored in |
| manifest.py, patch_manifest.py | the file that names the shards of a version, in full or as what changed |
| manifest_text.py | reading that file, which others may have written |
| notices.py | what leads to a version, before anything is read of it |
| publishing.py, shards.py, patch_shards.py | writing: tensors or their changes into shards, digests taken meanwhile |
| targets.py | where shards go: a disk, or a store elsewhere |
| checking.py | one shard against its manifest, byte for byte |
| reading.py | a noticed version and what it is based on, from any store |
| lane.py | the same files in shared memory, beside a store elsewhere |
| copies.py, applying.py | a reader's own copy, which patches take from version to version |
| single_file.py | the one file of runs that began before there were manifests |
| files.py | what a path to a version's weights leads to |
| bit_patterns.py | tensors as unsigned integers, which a patch compares and writes |
| gaps.py, differences.py, frames.py | positions, new values and their compression in a patch |
| patches.py | what of one tensor changed between two versions |
| chains.py | which form a version is stored in, and which forms a reader needs |
"""
