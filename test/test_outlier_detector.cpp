// The outlier detector: z against the preceding window, the permitted effect of an infinity and a spike,
// and that a restored detector continues identically.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "system/error.h"
#include "trainer/run/outlier_detector.h"

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();
constexpr size_t window = OutlierDetector::window;

// Alternating values, so that the mean is 2 and the deviation exactly 0.5.
void fill(OutlierDetector& detector) {
    for (size_t i = 0; i < window; i++)
        ASSERT_EQ(detector.judge(i % 2 ? 2.5 : 1.5, i % 2 ? 2.5 : 1.5), "") << i;
}

TEST(OutlierDetector, JudgesByTheDeviationsAboveTheMeanOfTheWindow) {
    for (const double z : {2.9, 3.1, -50.0}) {
        OutlierDetector detector(3, 0);
        fill(detector);
        EXPECT_EQ(detector.judge(2 + z * 0.5, 1e9), z == 3.1 ? "loss z 3.10 > 3" : "") << z;
    }
    OutlierDetector both(3, 4);
    fill(both);
    EXPECT_EQ(both.judge(2 + 5 * 0.5, 2 + 6 * 0.5), "loss z 5.00 > 3, grad_norm z 6.00 > 4");
}

TEST(OutlierDetector, MatchesTheFormulaOnRandomValues) {
    std::mt19937_64 generator(3);
    std::lognormal_distribution<double> values(0.0, 1.0);  // with spikes beyond the limit of the window
    OutlierDetector detector(1.5, 0);
    std::vector<double> entered;
    int outliers = 0;
    for (int step = 0; step < 1000; step++) {
        const double value = values(generator);
        bool expected = false;
        double enters = value;
        if (entered.size() >= window) {
            double mean = 0, variance = 0;
            for (size_t i = entered.size() - window; i < entered.size(); i++) mean += entered[i] / window;
            for (size_t i = entered.size() - window; i < entered.size(); i++)
                variance += (entered[i] - mean) * (entered[i] - mean) / window;
            expected = value > mean + 1.5 * std::sqrt(variance);
            enters = std::min(value, mean + 4.5 * std::sqrt(variance));
        }
        entered.push_back(enters);
        EXPECT_EQ(!detector.judge(value, 1.0).empty(), expected) << "step " << step;
        outliers += expected;
    }
    EXPECT_GT(outliers, 30);
}

TEST(OutlierDetector, SaysNothingBeforeTheWindowIsFullOrWithoutALimit) {
    OutlierDetector detector(3, 3), off(0, 0);
    EXPECT_TRUE(detector.active());
    EXPECT_FALSE(off.active());
    for (size_t i = 0; i < window; i++) ASSERT_EQ(detector.judge(i == 100 ? 1e6 : 1.0, 1.0), "");
    fill(off);
    EXPECT_EQ(off.judge(1e9, 1e9), "");
}

TEST(OutlierDetector, OneInfinityOrNaNDoesNotBlindIt) {
    for (const double bad : {infinity, -infinity, nan}) {
        OutlierDetector detector(3, 3);
        EXPECT_EQ(detector.judge(bad, 2), "loss is not finite");  // also before the window is full
        fill(detector);
        EXPECT_EQ(detector.judge(bad, 2), "loss is not finite");
        EXPECT_EQ(detector.judge(2, bad), "");  // the optimizer skips this step anyway
        EXPECT_EQ(detector.judge(2, 2), "");
        EXPECT_NE(detector.judge(4, 2), "");
        EXPECT_NE(detector.judge(2, 4), "");
    }
}

TEST(OutlierDetector, AHugeSpikeDoesNotHideTheNext) {
    OutlierDetector detector(3, 0);
    fill(detector);
    EXPECT_NE(detector.judge(1e30, 0), "");
    EXPECT_NE(detector.judge(5, 0), "");
}

TEST(OutlierDetector, ALevelThatRoseForGoodBecomesTheNewMean) {
    for (const double limit : {1.0, 3.0, 7.0}) {
        OutlierDetector detector(limit, 0);
        fill(detector);
        size_t skipped = 0;
        for (size_t step = 0; step < 2 * window; step++)
            skipped += !detector.judge(20 + 0.5 * (step % 2), 0).empty();
        EXPECT_GT(skipped, 0u);
        EXPECT_LT(skipped, window) << limit;
        EXPECT_EQ(detector.judge(20, 0), "");
    }
}

TEST(OutlierDetector, ValuesThatNeverVariedJudgeNothing) {
    OutlierDetector detector(3, 0);
    for (size_t i = 0; i < window; i++) EXPECT_EQ(detector.judge(0.0, 0), "");
    EXPECT_EQ(detector.judge(0.5, 0), "");
    EXPECT_NE(detector.judge(0.7, 0), "");
}

TEST(OutlierDetector, GoesOnFromItsStateAsItWouldHave) {
    for (const int saved_at : {0, 50, 300}) {
        std::mt19937_64 generator(5);
        std::lognormal_distribution<double> values(0.0, 0.3);
        OutlierDetector whole(2, 2.5);
        nlohmann::json saved = whole.state();
        std::vector<std::pair<double, double>> after;
        std::vector<std::string> verdicts;
        for (int step = 0; step < 600; step++) {
            if (step == saved_at) saved = nlohmann::json::parse(whole.state().dump());
            const double loss = values(generator), norm = values(generator);
            const std::string verdict = whole.judge(loss, norm);
            if (step < saved_at) continue;
            after.emplace_back(loss, norm);
            verdicts.push_back(verdict);
        }
        OutlierDetector resumed(2, 2.5);
        resumed.restore(saved);
        for (size_t i = 0; i < after.size(); i++)
            ASSERT_EQ(resumed.judge(after[i].first, after[i].second), verdicts[i]) << i;
        EXPECT_EQ(resumed.state(), whole.state());
    }
}

TEST(OutlierDetector, RefusesWhatIsNoState) {
    OutlierDetector detector(3, 3);
    using nlohmann::json;
    detector.restore(json::object());
    for (const json& bad :
         {json(), json(7), json{{"loss", 3}}, json{{"loss", {1, "x"}}}, json{{"grad_norm", {1, nullptr}}},
          json{{"loss", std::vector<double>(window + 1)}}}) {
        EXPECT_THROW(detector.restore(bad), UsageError) << bad;
    }
}

}  // namespace
