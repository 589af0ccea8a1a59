"""Parts of a program with settings of their own, and their marks on its graphs."""
