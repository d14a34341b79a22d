/* The container that holds a pod's namespaces: it waits for its end. */
#include <signal.h>
#include <unistd.h>

static void end(int signal) { _exit(signal == SIGINT ? 1 : 0); }

int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    for (;;)
        pause();
}
