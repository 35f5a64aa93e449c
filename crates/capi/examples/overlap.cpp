// Starts the all-reduce of one layer's gradients while the next layer's are computed, in memory
// that is registered: ringrun -n 2 ./overlap
#include <ringreduce.h>

#include <cstdio>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace {

void check(rr_status status) {
  if (status != RR_OK) throw std::runtime_error(rr_last_failure()->message);
}

using Communicator = std::unique_ptr<rr_comm, decltype(&rr_close)>;

Communicator init() {
  rr_comm *comm = nullptr;
  check(rr_init(&comm, nullptr, 0));
  return {comm, &rr_close};
}

void train_a_step(rr_comm *comm) {
  constexpr std::size_t layers = 4, length = 100000;
  std::vector<float *> gradients(layers);
  std::vector<rr_request *> requests(layers);
  for (std::size_t layer = 0; layer < layers; layer++) {
    void *memory = nullptr;
    check(rr_alloc(comm, length * sizeof(float), &memory));
    gradients[layer] = static_cast<float *>(memory);
  }
  for (std::size_t layer = layers; layer-- > 0;) {
    // The work of a backward pass.
    std::iota(gradients[layer], gradients[layer] + length, static_cast<float>(rr_rank(comm)));
    rr_call call = {};
    call.size = sizeof call;
    call.verb = RR_ALL_REDUCE;
    call.sendbuff = call.recvbuff = gradients[layer];
    call.count = length;
    call.datatype = RR_FLOAT;
    call.op = RR_AVG;
    check(rr_start(comm, &call, &requests[layer]));
  }
  for (auto &request : requests) check(rr_wait(&request, nullptr));
  std::printf("rank %d of %d: %g\n", rr_rank(comm), rr_size(comm), gradients[0][0]);
  for (float *memory : gradients) check(rr_free(comm, memory));
}

}  // namespace

int main() try {
  train_a_step(init().get());
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
