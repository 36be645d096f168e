import { useState } from 'react';
import { isRun, type Work } from '../api/client';
import { actions, useAction, usePullRequest } from '../api/queries';
import { hasEnded } from '../model/work';
import { Button, Loading, Problem } from '../parts/controls';
import { PullRequest } from '../parts/proofs';
import { Moment, Said } from '../parts/text';
import { useToast } from '../parts/toast';
import { useLink } from '../shell/link';

/** The state of a pull request, its comments, and a button to send them to the agent. */
export function PullRequestSection({ work }: { work: Work }) {
  const [reads, read] = useState(false);
  const pullRequest = usePullRequest(work.id, reads);
  if (!work.delivery?.number) return null;
  const { status, state, ci, reason } = pullRequest.data?.delivery ?? work.delivery;
  return (
    <section>
      <h2>Pull request</h2>
      <p>
        <PullRequest work={work} />{' '}
        <span className="faint">
          {[state, ci && ci !== 'none' ? `CI ${ci}` : ''].filter(Boolean).join(', ')}
        </span>
      </p>
      {status === 'delivered' && reason && (
        <p className="faint">
          <Said>{reason}</Said>
        </p>
      )}
      {!reads && (
        <Button small onClick={() => read(true)}>
          Show comments
        </Button>
      )}
      {reads && pullRequest.isPending && <Loading lines={2} />}
      <Problem error={pullRequest.error} />
      {pullRequest.data && (
        <ul className="comments">
          {pullRequest.data.comments.map((comment) => (
            <li key={comment.id}>
              <span className="faint small block">
                <Said>{comment.author}</Said>
                {comment.path && (
                  <>
                    {' on '}
                    <Said className="mono">{comment.path}</Said>
                  </>
                )}
                , <Moment at={comment.at} />
              </span>
              <Said>{comment.text}</Said>
            </li>
          ))}
        </ul>
      )}
      {pullRequest.data?.comments.length === 0 && <p className="faint">No comments.</p>}
      <Deal work={work} />
    </section>
  );
}

function Deal({ work }: { work: Work }) {
  const away = useLink().state === 'away';
  const tell = useToast();
  const deal = useAction(() => actions.follow(work.id, null, true));
  if (!hasEnded(work) || work.archived_at) return null;
  const action = isRun(work) ? 'Start a task with the new comments' : 'Send the new comments to the agent';
  const notify = ({ id }: Work) => {
    const text = isRun(work)
      ? 'The comments went to a new task on the branch.'
      : 'The comments went to the agent.';
    tell({ state: 'queued', text, to: `/tasks/${id}` });
  };
  return (
    <div className="deal">
      <Button
        small
        disabled={away || deal.isPending}
        onClick={() => deal.mutate(undefined, { onSuccess: notify })}
      >
        {deal.isPending ? 'Sending…' : action}
      </Button>
      <Problem error={deal.error} />
    </div>
  );
}
