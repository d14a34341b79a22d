/* A container that says something ten times a second: for `kubectl logs --follow` and `kubectl exec`. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void end(int signal) { _exit(0); }

int main(void) {
    signal(SIGTERM, end);
    for (unsigned long number = 0;; number++) {
        if (printf("%lu\n", number) < 0 || fflush(stdout))
            return 1;
        usleep(100000);
    }
}
