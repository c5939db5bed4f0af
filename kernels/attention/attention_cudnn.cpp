// attention_cudnn.cpp: attention.h by cuDNN's scaled dot-product attention
//   https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html
//   A plan is a graph of one operation over strided tensors; it is made once for every shape and pass, and
//   compiled when it first runs: memory plans ask about many shapes of which few run. cuDNN's heuristics
//   order several plans by a model of the GPU; the first few are timed on the GPU itself.
//   cuDNN's "stats" are our lse.
//   This is host code only, because nvcc takes minutes over the frontend's headers.
#include "kernels/attention/attention_cudnn.h"

#include <cudnn.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/gemm/gemm_tuner.h"
#include "system/error.h"

namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Tensors = std::unordered_map<int64_t, void*>;

enum Id : int64_t { q_id = 1, k_id, v_id, out_id, lse_id, dout_id, dq_id, dk_id, dv_id };

// Joins the lines of a message.
std::string one_line(std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

// At most half of a part: fewer of its sequences or, if it is one sequence, fewer heads: all that share keys
// and values stay together.
AttentionShape smaller(AttentionShape part) {
    int& count = part.B > 1 ? part.B : part.NKV;
    const int queries = part.queries();
    int divisor = count / 2;
    while (count % divisor != 0) divisor--;
    count = divisor;
    part.NH = part.NKV * queries;
    return part;
}

// Elements from the start of a tensor to the first element of the part at sequence b and head h.
struct Offset {
    size_t q, kv, out, lse;  // kv: from the first head of k to that which the part reads first
    Offset(AttentionShape s, int b, int h) {
        const auto size = [](int n) { return static_cast<size_t>(n); };
        lse = (size(b) * size(s.NH) + size(h)) * size(s.T);
        out = size(b) * size(s.T) * size(s.NH) * size(s.HS) + size(h) * size(s.HS);
        q = out + 2 * size(b) * size(s.T) * size(s.NKV) * size(s.HS);
        kv = q - size(h) * size(s.HS) + size(h / s.queries()) * size(s.HS);
    }
};

// Describes one pass over a part of tensors whose full shape is `whole`.
class Description {
public:
    Description(Graph& graph, AttentionShape whole, AttentionShape part)
        : graph_(graph), whole_(whole), part_(part) {
        graph.set_io_data_type(fe::DataType_t::BFLOAT16)
            .set_intermediate_data_type(fe::DataType_t::FLOAT)
            .set_compute_data_type(fe::DataType_t::FLOAT);
    }

    void forward() {
        auto options = causal(fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true));
        const auto [out, lse] = graph_.sdpa(input(q_id, q()), input(k_id, kv()), input(v_id, kv()), options);
        output(out, out_id, plain());
        output(lse, lse_id, row()).set_data_type(fe::DataType_t::FLOAT);
    }

    void backward(bool deterministic) {
        auto options = causal(fe::graph::SDPA_backward_attributes()
                                  .set_name("attention_backward")
                                  .set_deterministic_algorithm(deterministic));
        const GraphTensor lse = input(lse_id, row());
        lse->set_data_type(fe::DataType_t::FLOAT);
        const auto gradients =
            graph_.sdpa_backward(input(q_id, q()), input(k_id, kv()), input(v_id, kv()),
                                 input(out_id, plain()), input(dout_id, plain()), lse, options);
        for (size_t i = 0; i < gradients.size(); i++)
            output(gradients[i], std::array{dq_id, dk_id, dv_id}[i], i == 0 ? q() : kv());
    }

private:
    // cuDNN orders the dimensions (sequence, head, token, column), whatever the strides are.
    struct Layout {
        std::vector<int64_t> dims, strides;
    };
    Layout layout(int heads, int token_stride) const {
        return {{part_.B, heads, part_.T, part_.HS},
                {int64_t{whole_.T} * token_stride, whole_.HS, token_stride, 1}};
    }
    int of_token() const { return (whole_.NH + 2 * whole_.NKV) * whole_.HS; }  // elements of qkv
    Layout q() const { return layout(part_.NH, of_token()); }
    Layout kv() const { return layout(part_.NKV, of_token()); }
    Layout plain() const { return layout(part_.NH, whole_.NH * whole_.HS); }
    Layout row() const {
        return {{part_.B, part_.NH, part_.T, 1}, {int64_t{part_.NH} * part_.T, part_.T, 1, 1}};
    }

    GraphTensor input(Id id, const Layout& layout) {
        return graph_.tensor(
            fe::graph::Tensor_attributes().set_uid(id).set_dim(layout.dims).set_stride(layout.strides));
    }
    static fe::graph::Tensor_attributes& output(const GraphTensor& tensor, Id id, const Layout& layout) {
        return tensor->set_output(true).set_uid(id).set_dim(layout.dims).set_stride(layout.strides);
    }
    template <class Options>
    Options causal(Options options) const {
        options.set_attn_scale(1 / std::sqrt(static_cast<float>(whole_.HS)));
        options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
        return options;
    }

    Graph& graph_;
    AttentionShape whole_, part_;
};

// A graph for which cuDNN's heuristics have listed plans, the best one first, that are not compiled yet.
class PlannedGraph : public Graph {
public:
    // The frontend's own part of the workspace. cuDNN's part is still 0 here, because nothing is compiled.
    size_t own_workspace() const { return static_cast<size_t>(get_autotune_workspace_size()); }

    // Bytes of workspace of the plan that check_support() accepted.
    fe::error_t accepted_workspace(int64_t& bytes) {
        if (plans.candidate >= 0) return get_workspace_size(bytes);  // cuDNN before 9.2 compiles to check
        // In spite of its name, this returns the plans that are left.
        fe::EngineConfigList accepted = plans.get_barred_engine_configs();
        const fe::error_t status = fe::detail::get_workspace_size(accepted.front(), bytes);
        bytes += static_cast<int64_t>(own_workspace());
        return status;
    }

    // Compiles up to `most` plans that need no more workspace than this, and returns their numbers; execute()
    // runs the first of them. Returns nothing if none compiles; `status` says why.
    std::vector<int64_t> compile(size_t most_workspace, size_t most, fe::error_t& status) {
        deselect_workspace_greater_than(static_cast<int64_t>(most_workspace - own_workspace()));
        status = build_plans();
        if (status.is_bad()) return {};
        std::vector<int64_t> compiled = {plans.candidate};
        for (int64_t i = compiled[0] + 1; i < get_execution_plan_count() && compiled.size() < most; i++)
            if (build_plan_at_index(i).is_good()) compiled.push_back(i);
        choose(compiled[0]);
        return compiled;
    }
    void choose(int64_t plan) { plans.candidate = plan; }
};

struct Plan {
    CudnnOffer offer;
    std::unique_ptr<PlannedGraph> graph;
    bool compiled = false;
    std::vector<int64_t> untimed;  // which of the graph's plans to time when it first runs
};

constexpr size_t most_timed = 4;      // each takes about half a second to compile
constexpr double timing_seconds = 2;  // for each shape and pass

// One handle for the process: creating it loads libraries, and --batch-size auto compares many models, each
// with its own attention. It is not destroyed, because CUDA may end before it.
cudnnHandle_t cudnn_handle() {
    static const cudnnHandle_t handle = [] {
        cudnnHandle_t created = nullptr;
        const cudnnStatus_t status = cudnnCreate(&created);
        if (status != CUDNN_STATUS_SUCCESS)
            throw Error(fmt::format("cuDNN does not start: {}", cudnnGetErrorString(status)));
        return created;
    }();
    return handle;
}

}  // namespace

struct CudnnAttention::State {
    const bool deterministic;
    const std::optional<DescribedGpu> described;
    std::optional<std::string> unavailable;  // no value before the first question
    cudnnHandle_t library = nullptr;
    std::shared_ptr<fe::DeviceProperties> properties;  // of the described GPU
    using Key = std::tuple<AttentionPass, int, int, int, int, int>;
    static Key key(AttentionPass pass, AttentionShape s) { return {pass, s.B, s.T, s.NH, s.HS, s.NKV}; }
    std::map<Key, Plan> plans;

    State(bool deterministic, std::optional<DescribedGpu> gpu)
        : deterministic(deterministic), described(std::move(gpu)) {}

    // Returns "" or the reason why cuDNN cannot be used.
    std::string start() {
        const int capability =
            described ? described->compute_capability : simt::device_info().compute_capability;
        if (capability < 80)
            return fmt::format("cuDNN's attention needs compute capability 8.0, and this GPU has {}.{}",
                               capability / 10, capability % 10);
        if (described) {
            properties = std::make_shared<fe::DeviceProperties>();
            return one_line(
                properties->deserialize({described->properties.begin(), described->properties.end()})
                    .get_message());
        }
        library = cudnn_handle();
        return "";
    }

    // Cases that are refused here, without asking cuDNN. Returns the reason, or "".
    static std::string refusal(AttentionShape shape, AttentionPass pass) {
        if (shape.HS % 8 != 0)
            return fmt::format("cuDNN's attention needs a head size that is a multiple of 8, and {} is not",
                               shape.HS);
        // cuDNN takes such a shape for a step of generation, which its release notes exclude from backward.
        if (shape.T == 1) return "cuDNN's attention does not train on sequences of one token";
        // Before 9.15.1, backward read behind the last row
        // (https://github.com/NVIDIA/cudnn-frontend/releases/tag/v1.16.0) or gave NaN.
        const size_t version = cudnnGetVersion();
        if (pass == AttentionPass::backward && shape.T % 128 != 0 && version < 91501)
            return fmt::format("cuDNN {}.{}.{} is older than 9.15.1 and {} tokens are no multiple of 128",
                               version / 10000, version / 100 % 100, version % 100, shape.T);
        return "";
    }

    // A graph for the part, checked for support within so much workspace.
    fe::error_t describe(PlannedGraph& graph, AttentionShape shape, AttentionShape part, AttentionPass pass,
                         size_t most_workspace) const {
        if (described) {
            graph.set_device_properties(properties);
            graph.set_sm_version(described->compute_capability).set_sm_count(described->multiprocessors);
        }
        Description description(graph, shape, part);
        if (pass == AttentionPass::forward) description.forward();
        else description.backward(deterministic);
        fe::error_t status = graph.validate();
        if (status.is_good())
            status = described ? graph.build_operation_graph() : graph.build_operation_graph(library);
        if (status.is_good()) status = graph.create_execution_plans({fe::HeurMode_t::A});
        if (status.is_bad()) return status;
        const size_t own = graph.own_workspace();  // the limit below applies to cuDNN's part
        if (own > most_workspace) return {fe::error_code_t::GRAPH_NOT_SUPPORTED, "too little workspace"};
        graph.deselect_workspace_greater_than(static_cast<int64_t>(most_workspace - own));
        return graph.check_support();
    }

    Plan make_plan(AttentionShape shape, AttentionPass pass, size_t most_workspace) const {
        Plan plan;
        plan.offer.part = shape;
        plan.offer.refusal = *unavailable;
        if (plan.offer.refusal.empty()) plan.offer.refusal = refusal(shape, pass);
        if (!plan.offer.refusal.empty()) return plan;

        auto graph = std::make_unique<PlannedGraph>();
        fe::error_t status = describe(*graph, shape, shape, pass, most_workspace);
        for (AttentionShape& part = plan.offer.part; status.is_bad() && (part.B > 1 || part.NKV > 1);) {
            // Smaller parts help only if the workspace is the reason.
            PlannedGraph unlimited;
            if (describe(unlimited, shape, part, pass, size_t{1} << 62).is_bad()) break;
            part = smaller(part);
            graph = std::make_unique<PlannedGraph>();
            status = describe(*graph, shape, part, pass, most_workspace);
        }
        int64_t bytes = 0;
        if (status.is_good()) status = graph->accepted_workspace(bytes);
        plan.offer.workspace_bytes = static_cast<size_t>(bytes);
        if (status.is_good()) plan.graph = std::move(graph);
        else plan.offer.refusal = one_line("cuDNN finds no plan: " + status.get_message());
        return plan;
    }

    // Compiles the plan, which may end in a refusal. The deterministic attention keeps the first, because two
    // runs may time differently, and another plan has other bits.
    void compile(Plan& plan) const {
        plan.compiled = true;
        if (!plan.graph) return;
        fe::error_t status;
        plan.untimed =
            plan.graph->compile(plan.offer.workspace_bytes, deterministic ? 1 : most_timed, status);
        if (status.is_bad())
            plan.offer.refusal = one_line("cuDNN does not compile its plan: " + status.get_message());
    }

    // Runs the compiled plans on the tensors of the first part, whose outputs every one overwrites, and keeps
    // the fastest. A plan that fails, or computes something else than the first, is left out.
    void keep_fastest(Plan& plan, Tensors part, const std::vector<GemmTuner::Output>& outputs,
                      void* workspace, stream_t stream) const {
        const std::vector<int64_t> plans_to_time = std::exchange(plan.untimed, {});
        GemmTuner tuner(timing_seconds, workspace, plan.offer.workspace_bytes);
        const auto run = [&](size_t i) {
            plan.graph->choose(plans_to_time[i]);
            return plan.graph->execute(library, part, workspace).is_good();
        };
        const auto fastest = tuner.fastest(plans_to_time.size(), run, outputs, stream);
        plan.graph->choose(plans_to_time[fastest ? fastest->way : 0]);
    }

    // Runs the pass part by part. tensors(offset) gives the addresses of the part at that offset, and outputs
    // are what the pass writes of the first sequence.
    template <class AddressesOf>
    void run(AttentionShape shape, AttentionPass pass, void* workspace, stream_t stream,
             const std::vector<GemmTuner::Output>& outputs, AddressesOf tensors) {
        Plan& made = plans.at(key(pass, shape));
        const cudnnStatus_t status = cudnnSetStream(library, stream);
        if (status != CUDNN_STATUS_SUCCESS)
            throw Error(fmt::format("attention: cuDNN says {}", cudnnGetErrorString(status)));
        if (made.untimed.size() > 1)
            keep_fastest(made, tensors(Offset(shape, 0, 0)), outputs, workspace, stream);
        for (int b = 0; b < shape.B; b += made.offer.part.B) {
            for (int h = 0; h < shape.NH; h += made.offer.part.NH) {
                Tensors part = tensors(Offset(shape, b, h));
                fe::error_t result = made.graph->execute(library, part, workspace);
                if (result.is_bad()) throw Error(one_line("attention: cuDNN says " + result.get_message()));
            }
        }
    }
};

CudnnAttention::CudnnAttention(bool deterministic)
    : state_(std::make_unique<State>(deterministic, std::nullopt)) {}
CudnnAttention::CudnnAttention(bool deterministic, DescribedGpu gpu)
    : state_(std::make_unique<State>(deterministic, std::move(gpu))) {}
CudnnAttention::~CudnnAttention() = default;

const std::string& CudnnAttention::unavailable() {
    if (!state_->unavailable) {
        try {
            state_->unavailable = state_->start();
        } catch (const Error& error) { state_->unavailable = error.what(); }
    }
    return *state_->unavailable;
}

const CudnnOffer& CudnnAttention::plan(AttentionShape shape, AttentionPass pass, size_t most_workspace) {
    unavailable();
    const auto [entry, fresh] = state_->plans.try_emplace(State::key(pass, shape));
    if (fresh) entry->second = state_->make_plan(shape, pass, most_workspace);
    return entry->second.offer;
}

const CudnnOffer* CudnnAttention::compiled(AttentionShape shape, AttentionPass pass) {
    const auto entry = state_->plans.find(State::key(pass, shape));
    if (entry == state_->plans.end()) return nullptr;
    if (!entry->second.compiled) state_->compile(entry->second);
    return &entry->second.offer;
}

void CudnnAttention::forward(bfloat16* out, float* lse, const bfloat16* qkv, AttentionShape shape,
                             void* workspace, stream_t stream) {
    const size_t k = static_cast<size_t>(shape.NH) * static_cast<size_t>(shape.HS),
                 v = k + static_cast<size_t>(shape.NKV) * static_cast<size_t>(shape.HS);
    const Offset second(shape, 1, 0);  // where the second sequence begins
    auto* const q = const_cast<bfloat16*>(qkv);
    const std::vector<GemmTuner::Output> outputs = {{out, second.out, true}, {lse, second.lse, false}};
    state_->run(shape, AttentionPass::forward, workspace, stream, outputs, [&](Offset o) -> Tensors {
        return {{q_id, q + o.q},
                {k_id, q + o.kv + k},
                {v_id, q + o.kv + v},
                {out_id, out + o.out},
                {lse_id, lse + o.lse}};
    });
}

void CudnnAttention::backward(bfloat16* dqkv, const bfloat16* dout, const bfloat16* qkv, const bfloat16* out,
                              const float* lse, AttentionShape shape, void* workspace, stream_t stream) {
    const size_t k = static_cast<size_t>(shape.NH) * static_cast<size_t>(shape.HS),
                 v = k + static_cast<size_t>(shape.NKV) * static_cast<size_t>(shape.HS);
    const Offset second(shape, 1, 0);
    auto* const q = const_cast<bfloat16*>(qkv);
    const std::vector<GemmTuner::Output> outputs = {{dqkv, second.q, true}};
    state_->run(shape, AttentionPass::backward, workspace, stream, outputs, [&](Offset o) -> Tensors {
        return {{q_id, q + o.q},
                {k_id, q + o.kv + k},
                {v_id, q + o.kv + v},
                {out_id, const_cast<bfloat16*>(out) + o.out},
                {dout_id, const_cast<bfloat16*>(dout) + o.out},
                {lse_id, const_cast<float*>(lse) + o.lse},
                {dq_id, dqkv + o.q},
                {dk_id, dqkv + o.kv + k},
                {dv_id, dqkv + o.kv + v}};
    });
}
