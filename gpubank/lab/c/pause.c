/* The first process of every pod of the lab's real node, and the whole of its image: waits, and reaps what is left to it. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) {
  (void)number;
  _exit(0);
}

static void reap(int number) {
  (void)number;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

int main(int count, char **arguments) {
  signal(SIGTERM, end);
  signal(SIGINT, end);
  signal(SIGCHLD, reap);
  if (count > 1) {
    /* `pause SECONDS` is a job that ends. */
    unsigned left = (unsigned)atoi(arguments[1]);
    while ((left = sleep(left)) > 0) {
    }
    return 0;
  }
  for (;;) {
    pause();
  }
}
