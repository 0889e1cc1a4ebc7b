// A program that does nothing, as they are compiled for programs: see test_headers.h.
int main() {}
